// SPDX-License-Identifier: Apache-2.0
//
// A training run with everything a checkpoint has to bring back: shuffling, dropout, accumulation,
// mixed precision, a schedule, an object of the program's own. It saves by itself every --every
// updates, and goes on from its newest checkpoint under `lockstep launch --resume`. Each rank
// appends a line a micro-step to <project>/steps_<rank>: its number, the samples, the loss's bits;
// and in the end the bits of all weights and of the optimizer's learning rate. One rank can be held
// within a micro-step: it says "holding", "told" once a signal has asked it to stop, and goes on
// when there is a file <project>/release.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/base/program/stop_request.h"
#include "lockstep/lockstep.h"

namespace {

namespace data = lockstep::data;
namespace fs = std::filesystem;

struct Options {
  fs::path project;
  int64_t steps = 30;  ///< Updates.
  int64_t every = 4;
  int64_t accumulate = 1;
  std::string precision = "no";
  bool async = false;
  bool by_hand = false;  ///< Loads the newest checkpoint itself.
  int64_t hold_at = 0;   ///< A micro-step; 0: none.
  int hold_rank = 0;
};

class NetImpl : public torch::nn::Module {
 public:
  NetImpl()
      : in_(register_module("in", torch::nn::Linear(6, 32))),
        out_(register_module("out", torch::nn::Linear(32, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    return out_->forward(at::dropout(at::relu(in_->forward(x)), 0.3, is_training()));
  }

 private:
  torch::nn::Linear in_;
  torch::nn::Linear out_;
};
TORCH_MODULE(Net);

/// Counts micro-steps over all lives of the run.
struct Counter {
  int64_t count = 0;
  nlohmann::json state_dict() const { return {{"count", count}}; }
  void load_state_dict(const nlohmann::json& state) { count = state.at("count").get<int64_t>(); }
};

/// Sample i has the target i, so that a batch says what it is made of.
data::TensorDataset samples() {
  data::set_seed(5);
  constexpr int64_t kSamples = 50;
  const at::Tensor rows = at::rand({kSamples, 6});
  return {rows, at::arange(kSamples)};
}

std::string line_of(int64_t number, const at::Tensor& indices, float loss) {
  std::string line = fmt::format("{}:", number);
  for (int64_t i = 0; i < indices.numel(); ++i) {
    line += fmt::format(" {}", indices[i].item<int64_t>());
  }
  return line + fmt::format(" {:08x}\n", std::bit_cast<uint32_t>(loss));
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void hold(const fs::path& release) {
  say("holding");
  for (bool told = false; !fs::exists(release); ::usleep(1000)) {
    if (!told && lockstep::StopRequests::signal_received() != 0) {
      told = true;
      say("told");
    }
  }
}

int train(const Options& options) {
  lockstep::Accelerator accelerator(
      {.mixed_precision = lockstep::parse_precision(options.precision),
       .gradient_accumulation_steps = options.accumulate,
       .project_dir = options.project,
       .project_config = {
           .total_limit = 2,
           .checkpointing_steps = options.every,
           .async_checkpointing = options.async}});
  auto loader_of_all = data::Loader(samples(), {.batch_size = 4, .shuffle = true, .seed = 3});
  Net net;
  data::set_seed(11, /*device_specific=*/true, accelerator.process_index());
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(
      net,
      lockstep::optim::Adam(net->parameters(), {.lr = 0.01}),
      std::move(loader_of_all),
      lockstep::schedule::warmup_cosine({.warmup_steps = 5, .total_steps = options.steps}));
  Counter counter;
  accelerator.register_for_checkpointing(counter);
  if (options.by_hand) {
    accelerator.resume_latest();
  }
  std::ofstream steps(
      options.project / fmt::format("steps_{}", accelerator.process_index()), std::ios::app);
  say(fmt::format("ready {} {}", accelerator.process_index(), ::getpid()));
  for (const int64_t epoch : accelerator.epochs(1000)) {
    (void)epoch;
    for (auto& batch : loader) {
      auto micro_step = accelerator.accumulate(model);
      const at::Tensor loss = [&] {
        auto cast = accelerator.autocast();
        return at::cross_entropy_loss(model->forward(batch.data), batch.target.remainder(4));
      }();
      if (counter.count + 1 == options.hold_at &&
          accelerator.process_index() == options.hold_rank) {
        hold(options.project / "release");
      }
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) {
        accelerator.clip_grad_norm_(net->parameters(), 1.0);
      }
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      steps << line_of(++counter.count, batch.target, loss.item<float>()) << std::flush;
      accelerator.print(fmt::format("step {} ", counter.count));
      if (optimizer.steps() >= options.steps) {
        break;
      }
    }
    if (optimizer.steps() >= options.steps) {
      break;
    }
  }
  uint32_t weights = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    weights = lockstep::crc32c(weights, parameter.const_data_ptr(), parameter.nbytes());
  }
  steps << fmt::format("end {:08x} {}\n", weights, optimizer.steps());
  steps.close();
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a little, to be killed and resumed.");
  app.add_option("--project", options.project)->required();
  app.add_option("--steps", options.steps);
  app.add_option("--every", options.every);
  app.add_option("--accumulate", options.accumulate);
  app.add_option("--precision", options.precision);
  app.add_flag("--async", options.async);
  app.add_flag("--by-hand", options.by_hand);
  app.add_option("--hold-at", options.hold_at);
  app.add_option("--hold-rank", options.hold_rank);
  CLI11_PARSE(app, argc, argv);
  return lockstep::run_main([&] { return train(options); });
}
