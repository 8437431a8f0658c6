// SPDX-License-Identifier: Apache-2.0
//
// Trains a small model with recorded steps, for report_test.cpp: report_fixture FOLDER STEPS [END].
// END "kill": rank 1 kills itself after half of the steps. The exit code is 0 without it.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include <torch/nn/modules/linear.h>

#include "lockstep/lockstep.h"

namespace {

namespace data = lockstep::data;

int train(const std::string& folder, int64_t steps, const std::string& end) {
  lockstep::Accelerator accelerator(
      {.log_with = {"jsonl"}, .project_dir = folder, .record_steps = true});
  torch::manual_seed(1);
  const int64_t rows = steps * 4 * accelerator.num_processes();
  const at::Tensor inputs = at::sin(at::arange(rows * 3, at::kFloat)).reshape({rows, 3});
  torch::nn::Linear net(3, 1);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      lockstep::optim::AdamW(net->parameters(), {.lr = 0.01}),
      data::Loader(data::TensorDataset(inputs, inputs.sum(1, true)), {.batch_size = 4}));
  accelerator.init_trackers({{"lr", 0.01}, {"note", "</script><b>bold</b>"}});
  for (auto& batch : loader) {
    const auto loss = (model->forward(batch.data) - batch.target).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    accelerator.log({{"train/loss", loss.item<double>()}});
    // Several records, also of a short run.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (end == "kill" && accelerator.process_index() == 1 && optimizer.steps() == steps / 2) {
      ::raise(SIGKILL);
    }
  }
  accelerator.save_state();
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main(
      [&] { return train(argv[1], std::stoll(argv[2]), argc > 3 ? argv[3] : ""); });
}
