// SPDX-License-Identifier: Apache-2.0
// Trains a mixture of experts, of which each rank has a part. The curve is that of one process.
#include <lockstep/expert_parallel/moe.h>
#include <lockstep/lockstep.h>
#include <set>
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
  lockstep::Accelerator accelerator;
  lockstep::Group world = accelerator.group();
  // Neighbours have all experts together. Ranks with the same experts average those.
  const int ep = world.size() % 4 == 0 ? 4 : world.size() % 2 == 0 ? 2 : 1;
  lockstep::Group same_experts = world.split(world.rank() % ep);
  torch::manual_seed(1);  // Equal weights and data on all ranks.
  Net net(world.split(world.rank() / ep));
  std::set<std::string> of_experts;
  for (const auto& parameter : experts::expert_parameters(*net)) {
    of_experts.insert(parameter.name);
  }

  const auto share = 64 / world.size();
  const auto inputs = torch::randn({64, 8}).slice(0, world.rank() * share).slice(0, 0, share);
  const auto targets = inputs.abs().sum(1, true);
  for (int step = 0; step <= 200; ++step) {
    auto loss = (net(inputs) - targets).square().mean();
    if (step % 100 == 0) {
      const auto mean = accelerator.reduce(loss.detach(), lockstep::ReduceOp::kAvg);
      accelerator.print("step " + std::to_string(step) + ": " + std::to_string(mean.item<float>()));
    }
    net->zero_grad();
    (loss + 0.01 * experts::load_balancing_loss({net->moe->routing()}, world)).backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->named_parameters()) {
      auto& group = of_experts.contains(parameter.key()) ? same_experts : world;
      const auto gradient =
          group.all_reduce(parameter.value().grad(), lockstep::ReduceOp::kAvg).wait();
      parameter.value().sub_(gradient, 0.02);
    }
  }
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(run);
}
