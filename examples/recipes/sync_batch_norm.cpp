// SPDX-License-Identifier: Apache-2.0
// Batch normalization over the batches of all processes. The printed loss is the same for any
// number of processes.
#include <lockstep/lockstep.h>

#include <torch/torch.h>

namespace data = lockstep::data;
namespace optim = lockstep::optim;

namespace {

/// Sums a tensor over the group; its gradient is summed over the group, too. Collective.
at::Tensor sum_over(const lockstep::Group& group, const at::Tensor& x) {
  const auto summed = [group](const at::Tensor& part) {
    lockstep::Group handle = group;
    return handle.all_reduce(part.detach().clone()).wait();
  };
  const at::Tensor result = summed(x) + (x - x.detach());  // The gradient is that of x.
  if (result.requires_grad()) {
    result.register_hook(summed);
  }
  return result;
}

/// Normalizes float [batch, features] by mean and variance over all processes' batches, which have
/// equal sizes.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  SyncBatchNormImpl(int64_t features, lockstep::Group group)
      : weight_(register_parameter("weight", torch::ones(features))),
        bias_(register_parameter("bias", torch::zeros(features))),
        mean_(register_buffer("running_mean", torch::zeros(features))),
        variance_(register_buffer("running_var", torch::ones(features))),
        group_(std::move(group)) {}

  at::Tensor forward(const at::Tensor& x) {
    if (!is_training()) {
      return normalized(x, mean_, variance_);
    }
    const auto count = static_cast<double>(x.size(0) * group_.size());
    const auto mean = sum_over(group_, x.sum(0)) / count;
    const auto variance = sum_over(group_, (x - mean).square().sum(0)) / count;
    {
      const torch::NoGradGuard no_grad;
      mean_.lerp_(mean, 0.1);
      variance_.lerp_(variance * count / (count - 1), 0.1);
    }
    return normalized(x, mean, variance);
  }

 private:
  at::Tensor normalized(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& variance) {
    return (x - mean) * torch::rsqrt(variance + 1e-5) * weight_ + bias_;
  }

  at::Tensor weight_, bias_, mean_, variance_;
  lockstep::Group group_;
};
TORCH_MODULE(SyncBatchNorm);

int train() {
  lockstep::Accelerator accelerator({.split_batches = true});
  data::set_seed(1);
  // A group of its own, since the gradients use the Accelerator's during backward.
  torch::nn::Sequential net(
      torch::nn::Linear(2, 16),
      SyncBatchNorm(16, accelerator.group().split(0)),
      torch::nn::ReLU(),
      torch::nn::Linear(16, 1));
  const auto x = torch::randn({1024, 2});
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      optim::SGD(net->parameters(), {.lr = 0.1}),
      data::Loader(data::TensorDataset(x, x.prod(1, true)), {.batch_size = 64, .shuffle = true}));
  at::Tensor loss;
  for ([[maybe_unused]] const int64_t epoch : accelerator.epochs(5)) {
    for (auto& batch : loader) {
      loss = torch::mse_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  loss = accelerator.reduce(loss.detach(), lockstep::ReduceOp::kAvg);
  accelerator.print("loss " + std::to_string(loss.item<double>()).substr(0, 6));
  return 0;
}

}  // namespace

int main() {
  return lockstep::run_main(train);
}
