// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <fmt/format.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

/// Tensors of one device and dtype, which the foreach kernels take at once.
using TensorGroups = std::vector<std::vector<at::Tensor>>;

TensorGroups by_device_and_dtype(const std::vector<at::Tensor>& tensors) {
  TensorGroups groups;
  for (const at::Tensor& tensor : tensors) {
    const auto same = [&](const std::vector<at::Tensor>& group) {
      return group[0].device() == tensor.device() && group[0].scalar_type() == tensor.scalar_type();
    };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    (found == groups.end() ? groups.emplace_back() : *found).push_back(tensor);
  }
  return groups;
}

std::vector<at::Tensor> unique_tensors(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const at::TensorImpl*> seen;
  std::vector<at::Tensor> unique;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      unique.push_back(tensor);
    }
  }
  return unique;
}

std::vector<at::Tensor> gradients_of(const char* where, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : unique_tensors(parameters)) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      continue;
    }
    if (gradient.layout() != at::kStrided) {
      throw ConfigError(
          where,
          "got a sparse gradient, expected dense ones; try building its layer with sparse=false");
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

/// Returns the same gradients, writable. An expanded gradient is replaced by a copy in which each
/// element has its own memory.
std::vector<at::Tensor> writable_gradients_of(
    const char* where, const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined()) {
      continue;
    }
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.layout() == at::kStrided &&
        at::has_internal_overlap(gradient) == at::MemOverlap::Yes) {
      gradient = gradient.contiguous();
    }
  }
  return gradients_of(where, parameters);
}

void check_norm_type(const char* where, double norm_type) {
  if (!(norm_type > 0)) {
    throw ConfigError(
        where,
        fmt::format(
            "invalid norm_type; got {}, expected a number above 0, or infinity for the largest "
            "element",
            norm_type));
  }
}

at::Tensor total_norm(const std::vector<at::Tensor>& tensors, double norm_type) {
  const auto is_double = [](const at::Tensor& t) { return t.scalar_type() == at::kDouble; };
  const at::ScalarType dtype =
      std::any_of(tensors.begin(), tensors.end(), is_double) ? at::kDouble : at::kFloat;
  const at::Device device = tensors.empty() ? at::Device(at::kCPU) : tensors[0].device();
  std::vector<at::Tensor> norms;
  for (std::vector<at::Tensor>& group : by_device_and_dtype(tensors)) {
    // The largest element of nothing is an error of the kernel.
    std::erase_if(group, [](const at::Tensor& tensor) { return tensor.numel() == 0; });
    if (group.empty()) {
      continue;
    }
    for (const at::Tensor& norm : at::_foreach_norm(group, norm_type, dtype)) {
      norms.push_back(norm.to(device, dtype, /*non_blocking=*/true));
    }
  }
  if (norms.empty()) {
    return at::zeros({}, at::TensorOptions().dtype(dtype).device(device));
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void check_finite(const at::Tensor& norm) {
  const double value = norm.item<double>();
  if (!std::isfinite(value)) {
    throw ConfigError(
        "clip_grad_norm_",
        fmt::format(
            "the gradients' norm is {}, so they cannot be clipped; try a lower learning rate, a "
            "GradScaler with fp16, or error_if_nonfinite = false",
            value));
  }
}

}  // namespace

at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  check_norm_type("grad_norm", norm_type);
  const c10::AutoGradMode no_grad(false);
  return total_norm(gradients_of("grad_norm", parameters), norm_type);
}

at::Tensor weight_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  check_norm_type("weight_norm", norm_type);
  const c10::AutoGradMode no_grad(false);
  return total_norm(unique_tensors(parameters), norm_type);
}

at::Tensor clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type,
    bool error_if_nonfinite,
    const std::function<at::Tensor(const at::Tensor& own)>& over_ranks) {
  constexpr double kEpsilon = 1e-6;  // torch's, so that clipped gradients are equal.
  const char* where = "clip_grad_norm_";
  check_norm_type(where, norm_type);
  if (!(max_norm >= 0)) {
    throw ConfigError(
        where, fmt::format("invalid max_norm; got {}, expected at least 0", max_norm));
  }
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> gradients = writable_gradients_of(where, parameters);
  at::Tensor norm = total_norm(gradients, norm_type);
  if (over_ranks) {
    norm = over_ranks(norm);
  }
  if (error_if_nonfinite) {
    check_finite(norm);
  }
  if (std::isinf(max_norm)) {
    return norm;
  }
  const at::Tensor factor = norm.add(kEpsilon).reciprocal().mul(max_norm).clamp_max(1.0);
  const bool on_host =
      std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
        return gradient.is_cpu();
      });
  if (on_host && factor.item<double>() == 1) {
    // Reading the factor on the CPU costs nothing and saves a pass over the gradients.
    return norm;
  }
  for (const std::vector<at::Tensor>& group : by_device_and_dtype(gradients)) {
    at::Tensor scale = factor.to(group[0].device(), /*non_blocking=*/true);
    if (!scale.is_cpu()) {
      // Kernels on the CPU keep the factor's precision; CUDA's foreach wants it in their dtype.
      scale = scale.to(group[0].scalar_type());
    }
    at::_foreach_mul_(group, scale);
  }
  return norm;
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  const char* where = "clip_grad_value_";
  if (!(clip_value >= 0)) {
    throw ConfigError(
        where, fmt::format("invalid clip_value; got {}, expected at least 0", clip_value));
  }
  const c10::AutoGradMode no_grad(false);
  for (const std::vector<at::Tensor>& group :
       by_device_and_dtype(writable_gradients_of(where, parameters))) {
    at::_foreach_clamp_min_(group, -clip_value);
    at::_foreach_clamp_max_(group, clip_value);
  }
}

}  // namespace lockstep::optim
