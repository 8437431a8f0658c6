// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/tensor_line_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"
#include "lockstep/context_parallel/sequence_scope.h"
#include "lockstep/offload/scratch_file.h"
#include "lockstep/zero/sharding.h"

namespace lockstep::internal {
namespace {

constexpr int64_t kInterval = 100;

/// A parameter that all processes of a line have.
struct Whole {
  std::string name;
  at::Tensor held;  ///< This process's shard of it under ZeRO; undefined without one.
};

std::vector<Whole> whole_parameters(const PreparedObjects& objects) {
  std::vector<Whole> all;
  for (const PreparedModel& model : objects.models) {
    for (const NamedTensor& item : model.parameters()) {
      if (!model.divided || !item.tensor.requires_grad() || objects.division_of(item.tensor)) {
        continue;
      }
      at::Tensor held = item.tensor;
      if (objects.sharding) {
        const std::vector<at::Tensor> slices = objects.sharding->slices().of({item.tensor});
        held = slices.empty() ? at::Tensor() : slices.front();
      }
      all.push_back({item.name, held});
    }
  }
  return all;
}

/// Writes the norm and the sum of a tensor to two elements of `row`.
void describe(const at::Tensor& tensor, const at::Tensor& row, int64_t begin) {
  if (tensor.defined() && tensor.layout() == at::kStrided) {
    const at::Tensor wide = offload::in_memory(tensor.detach()).to(at::kDouble);
    row[begin].copy_(at::linalg_vector_norm(wide));
    row[begin + 1].copy_(at::sum(wide));
  }
}

/// Returns whether the ranks' norms, or their sums, differ by more than rounding.
bool differs(const at::Tensor& of_ranks, int64_t begin, double elements) {
  constexpr double kRounding = 1e-3;  // Kernels of GPUs may add in another order each time.
  const at::Tensor spread = at::sub(at::amax(of_ranks, 0), at::amin(of_ranks, 0));
  const double norm = at::max(of_ranks.select(1, begin)).item<double>();
  return spread[begin].item<double>() > kRounding * norm ||
         spread[begin + 1].item<double>() > kRounding * norm * std::sqrt(elements);
}

}  // namespace

void TensorLineCheck::loss_given(const GivenLoss& given) {
  if (objects_.context.mesh.sequence.size() > 1) {
    context_parallel::expect_divided_attention(objects_.context.mesh.pipeline);
  }
  loss_ = given.loss.detach();
}

void TensorLineCheck::gradients_complete(const Optimizer& optimizer) {
  Group line = objects_.context.mesh.tensor;
  if (line.size() == 1 || updates_[&optimizer.inner()]++ % kInterval != 0) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const std::vector<Whole> parameters = whole_parameters(objects_);
  const auto count = static_cast<int64_t>(parameters.size());
  at::Tensor own = at::zeros({count + 1, 4}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& held = parameters[static_cast<size_t>(i)].held;
    if (held.defined()) {
      describe(held.grad(), own[i], 0);
      describe(held, own[i], 2);
    }
  }
  describe(loss_, own[count], 0);
  const at::Tensor all = line.all_gather(own.unsqueeze(0)).wait();
  const at::Tensor losses = all.select(1, count);
  if (differs(losses, 0, 1)) {
    throw ConfigError(
        "tensor_parallel",
        fmt::format(
            "the loss differs between the processes of a tp line, from {} to {}, though they "
            "compute "
            "one model; expected that they read the same batches; prepare the loader, and draw its "
            "samples from equal random numbers",
            at::amin(losses, 0)[1].item<double>(),
            at::amax(losses, 0)[1].item<double>()));
  }
  for (int64_t i = 0; i < count; ++i) {
    const Whole& parameter = parameters[static_cast<size_t>(i)];
    const at::Tensor of_ranks = all.select(1, i);
    const double elements =
        parameter.held.defined() ? static_cast<double>(parameter.held.numel()) : 1;
    const bool by_gradient = differs(of_ranks, 0, elements);
    if (by_gradient || differs(of_ranks, 2, elements)) {
      const int64_t norm = by_gradient ? 0 : 2;
      throw ConfigError(
          "tensor_parallel",
          fmt::format(
              "the {} of {}, which all processes of a tp line have in full, differs between them "
              "(norms from {} to {}); give its module the style whole_sum_gradient if it is used "
              "with a part of the features, or sequence with sequence_parallel; else clip by "
              "accelerator.clip_grad_norm_, set equal learning rates, and draw equal random "
              "numbers "
              "on the processes of a line",
              by_gradient ? "gradient" : "value",
              parameter.name,
              at::amin(of_ranks, 0)[norm].item<double>(),
              at::amax(of_ranks, 0)[norm].item<double>()));
    }
  }
}

}  // namespace lockstep::internal
