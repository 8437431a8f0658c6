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
#include "lockstep/zero/sharding.h"

namespace lockstep::internal {
namespace {

constexpr int64_t kInterval = 100;

struct WholeGradient {
  std::string name;
  at::Tensor gradient;  ///< This process's shard under ZeRO; undefined without one.
};

std::vector<WholeGradient> whole_gradients(const PreparedObjects& objects) {
  std::vector<WholeGradient> all;
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
      all.push_back({item.name, held.defined() ? held.grad() : held});
    }
  }
  return all;
}

}  // namespace

void TensorLineCheck::gradients_complete(const Optimizer& optimizer) {
  Group line = objects_.context.mesh.tensor;
  if (line.size() == 1 || updates_[&optimizer.inner()]++ % kInterval != 0) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const std::vector<WholeGradient> gradients = whole_gradients(objects_);
  at::Tensor own = at::zeros({static_cast<int64_t>(gradients.size()), 2}, at::kDouble);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& gradient = gradients[i].gradient;
    if (gradient.defined() && gradient.layout() == at::kStrided) {
      const at::Tensor wide = gradient.to(at::kDouble);
      const at::Tensor row = own[static_cast<int64_t>(i)];
      row[0].copy_(at::linalg_vector_norm(wide));
      row[1].copy_(at::sum(wide));
    }
  }
  const at::Tensor all = line.all_gather(own.unsqueeze(0)).wait();
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor of_ranks = all.select(1, static_cast<int64_t>(i));
    const double norm = at::max(of_ranks.select(1, 0)).item<double>();
    const at::Tensor spread = at::amax(of_ranks, 0) - at::amin(of_ranks, 0);
    const double elements =
        gradients[i].gradient.defined() ? static_cast<double>(gradients[i].gradient.numel()) : 1;
    constexpr double kRounding = 1e-3;  // Kernels of GPUs may add in another order each time.
    if (spread[0].item<double>() > kRounding * norm ||
        spread[1].item<double>() > kRounding * norm * std::sqrt(elements)) {
      throw ConfigError(
          "tensor_parallel",
          fmt::format(
              "the gradient of {}, which all processes of a tp line have in full, differs between "
              "them (norms from {} to {}); give its module the style whole_sum_gradient if it is "
              "used with a part of the features, or sequence with sequence_parallel; else let the "
              "processes of a line read the same batches and draw the same random numbers",
              gradients[i].name,
              at::amin(of_ranks, 0)[0].item<double>(),
              norm));
    }
  }
}

}  // namespace lockstep::internal
