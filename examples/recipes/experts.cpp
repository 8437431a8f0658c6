// SPDX-License-Identifier: Apache-2.0
// Trains a mixture of experts, of which each rank has a part. The curve is that of one process.
#include <lockstep/lockstep.h>
#include <string>
#include <utility>

#include <torch/torch.h>

namespace {

namespace experts = lockstep::expert_parallel;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(lockstep::Group group) {
    const lockstep::nn::MoEOptions options{
        .hidden_size = 16, .num_experts = 4, .intermediate_size = 32, .router = {.k = 2}};
    in = register_module("in", torch::nn::Linear(8, 16));
    moe = register_module("moe", lockstep::nn::MoE(options, std::move(group)));
    out = register_module("out", torch::nn::Linear(16, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = in(x);
    return out(h + moe(h));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  lockstep::nn::MoE moe{nullptr};
};
TORCH_MODULE(Net);

int run() {
  lockstep::Accelerator accelerator;  // Of the mesh that `lockstep launch --mesh ep=2` gives.
  torch::manual_seed(1);              // Equal weights and data on all ranks.
  Net net(accelerator.mesh().experts);
  const auto inputs = torch::randn({64, 8});
  const auto targets = inputs.abs().sum(1, true);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      lockstep::optim::SGD(net->parameters(), {.lr = 0.02}),
      lockstep::data::Loader(
          lockstep::data::TensorDataset(inputs, targets),
          {.batch_size = 64 / accelerator.num_processes()}));
  for (int step = 0; step <= 200; ++step) {
    for (const auto& batch : loader) {
      const auto loss = (model->forward(batch.data) - batch.target).square().mean();
      if (step % 100 == 0) {
        const float mean =
            accelerator.reduce(loss.detach(), lockstep::ReduceOp::kAvg).item<float>();
        accelerator.print("step " + std::to_string(step) + ": " + std::to_string(mean));
      }
      const auto balance =
          experts::load_balancing_loss({net->moe->routing()}, accelerator.mesh().replicas);
      accelerator.backward(loss + 0.01 * balance);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
