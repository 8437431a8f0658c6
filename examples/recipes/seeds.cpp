// SPDX-License-Identifier: Apache-2.0
// Shows which random numbers are equal on all processes, and which differ.
#include <lockstep/lockstep.h>
#include <string>

#include <torch/torch.h>

namespace data = lockstep::data;

namespace {

/// Sample i is i plus noise: an augmentation. Its numbers depend on seed, epoch and sample only.
struct Noisy {
  int64_t size() const { return 8; }
  at::Tensor get(int64_t index) const { return static_cast<double>(index) + torch::rand({}); }
};

std::string text(const at::Tensor& values) {
  std::string line;
  for (const at::Tensor& value : values.flatten().unbind()) {
    line += " " + std::to_string(value.item<float>());
  }
  return line;
}

int run() {
  lockstep::Accelerator accelerator;
  data::set_seed(42);  // Equal on all processes: weights and data that each process makes.
  torch::nn::Linear net(1, 1);
  auto [model, loader] =
      accelerator.prepare(net, data::Loader(data::collated(Noisy()), {.batch_size = 2, .seed = 7}));
  accelerator.print("weights:" + text(accelerator.gather(model->weight.detach())));

  // Different on each process: dropout and other noise of the training loop.
  data::set_seed(42, /*device_specific=*/true, accelerator.process_index());
  accelerator.print("noise:" + text(accelerator.gather(torch::rand({1}))));

  std::vector<at::Tensor> samples;
  for (auto& batch : loader) {
    samples.push_back(accelerator.gather_for_metrics(batch));
  }
  // The same for any number of processes.
  accelerator.print("augmented samples:" + text(std::get<0>(at::cat(samples).sort())));
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
