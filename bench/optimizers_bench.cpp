// SPDX-License-Identifier: Apache-2.0
// Prints the time of a step of each optimizer, for bench/optimizers.py. The parameters are those of
// the transformer of models.h, with random gradients. optimizers_peers.py does the same.
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "bench/models.h"
#include "bench/timing.h"
#include "lockstep/base/memory/keep_memory.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/lockstep.h"

namespace {

namespace optim = lockstep::optim;
using Parameters = std::vector<at::Tensor>;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using Makers = std::map<std::string, std::function<OptimizerPtr(const Parameters&)>>;

Makers ours() {
  return {
      {"AdamW", [](const Parameters& all) { return std::make_unique<optim::AdamW>(all); }},
      {"Adam", [](const Parameters& all) { return std::make_unique<optim::Adam>(all); }},
      {"SGD",
       [](const Parameters& all) {
         return std::make_unique<optim::SGD>(all, optim::SGDOptions{.momentum = 0.9});
       }},
      {"Adagrad", [](const Parameters& all) { return std::make_unique<optim::Adagrad>(all); }},
      {"RMSprop", [](const Parameters& all) { return std::make_unique<optim::RMSprop>(all); }},
      {"Adafactor", [](const Parameters& all) { return std::make_unique<optim::Adafactor>(all); }},
      {"Lion", [](const Parameters& all) { return std::make_unique<optim::Lion>(all); }},
      {"LAMB", [](const Parameters& all) { return std::make_unique<optim::LAMB>(all); }},
  };
}

Makers libtorch() {
  namespace theirs = torch::optim;
  return {
      {"AdamW", [](const Parameters& all) { return std::make_unique<theirs::AdamW>(all); }},
      {"Adam", [](const Parameters& all) { return std::make_unique<theirs::Adam>(all); }},
      {"SGD",
       [](const Parameters& all) {
         return std::make_unique<theirs::SGD>(all, theirs::SGDOptions(1e-3).momentum(0.9));
       }},
      {"Adagrad", [](const Parameters& all) { return std::make_unique<theirs::Adagrad>(all); }},
      {"RMSprop", [](const Parameters& all) { return std::make_unique<theirs::RMSprop>(all); }},
  };
}

void set_loose_gradients(const Parameters& parameters) {
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = at::randn_like(parameter.detach());
  }
}

/// Sets gradients in buckets, as in a model on several ranks.
void set_flat_gradients(const Parameters& parameters) {
  const lockstep::DataParallelOptions defaults;
  for (const auto& plan :
       lockstep::flat::plan_buckets(parameters, defaults.cap_bytes, defaults.first_cap_bytes)) {
    const at::Tensor bucket = at::zeros({plan.numel});
    for (const auto& entry : plan.entries) {
      const at::Tensor& parameter = parameters[static_cast<size_t>(entry.parameter)];
      const at::Tensor place = lockstep::flat::view_like(bucket, entry, parameter);
      parameter.mutable_grad() = place.normal_().variable_data();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app("For bench/optimizers.py");
    std::string form = "flat";
    std::vector<std::string> wanted{"AdamW"};
    int64_t steps = 20;
    app.add_option("--form", form)->check(CLI::IsMember({"flat", "loose", "torch"}));
    app.add_option("--optimizers", wanted);
    app.add_option("--steps", steps);
    CLI11_PARSE(app, argc, argv);
    at::set_num_threads(1);
    if (form != "torch") {
      lockstep::keep_freed_memory();  // As the Accelerator does.
    }
    torch::manual_seed(0);
    const Makers makers = form == "torch" ? libtorch() : ours();
    for (const std::string& name : wanted) {
      const auto maker = makers.find(name);
      if (maker == makers.end()) {
        continue;  // libtorch lacks this optimizer.
      }
      const examples::CharModel model = bench::transformer();
      const Parameters parameters = model->parameters();
      const OptimizerPtr optimizer = maker->second(parameters);
      form == "flat" ? set_flat_gradients(parameters) : set_loose_gradients(parameters);
      const double us = bench::step_microseconds([&] { optimizer->step(); }, steps);
      std::cout << nlohmann::json{{"optimizer", name}, {"us", us}}.dump() + "\n" << std::flush;
    }
    return 0;
  });
}
