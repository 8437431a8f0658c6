// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/flat/rule.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <ATen/ScalarOps.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"

namespace lockstep::optim {
namespace {

// Elements. Of 4 Ki to 128 Ki the longest was the fastest for RMSprop and Lion (10M float32, one
// core), and a complete bucket at a time was slower again.
constexpr int64_t kChunk = int64_t{1} << 17;

// 64 bytes of fp32: libtorch's longest vectors.
constexpr int64_t kLanes = 16;

/// Returns the lists of tensors of a call: [0] parameters, [1] gradients, [2 ...] state fields.
std::vector<std::vector<at::Tensor>*> lists_of(RuleCall& call) {
  std::vector<std::vector<at::Tensor>*> lists = {&call.parameters, &call.gradients};
  for (std::vector<at::Tensor>& field : call.state) {
    lists.push_back(&field);
  }
  return lists;
}

/// Copies dense CPU tensors, up to the end of the shorter one.
void copy_memory(const at::Tensor& to, const at::Tensor& from) {
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), std::min(to.nbytes(), from.nbytes()));
}

}  // namespace

at::Tensor memory_of(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

std::vector<int64_t> state_sizes(
    StateShape shape, at::IntArrayRef sizes, at::IntArrayRef full_sizes) {
  if (shape != StateShape::kRow && shape != StateShape::kColumn) {
    return sizes.vec();
  }
  std::vector<int64_t> factored = full_sizes.vec();
  factored[factored.size() - (shape == StateShape::kRow ? 1 : 2)] = 1;
  return factored;
}

void require_option(
    bool good, const char* rule, const char* option, double value, const char* want) {
  if (!good) {
    throw ConfigError(
        "optim", fmt::format("{}: invalid {}; got {}, expected {}", rule, option, value, want));
  }
}

void require_not_negative(const char* rule, const char* option, double value) {
  require_option(value >= 0, rule, option, value, "at least 0");
}

void for_each_chunk(
    const RuleCall& call,
    const std::function<void(const std::vector<at::Tensor>& chunk, size_t index)>& visit) {
  for (size_t i = 0; i < call.parameters.size(); ++i) {
    std::vector<at::Tensor> tensors = {memory_of(call.parameters[i]), memory_of(call.gradients[i])};
    for (const auto& field : call.state) {
      tensors.push_back(field[i].defined() ? memory_of(field[i]) : at::Tensor());
    }
    const int64_t numel = tensors[0].numel();
    if (numel <= kChunk || !tensors[0].is_cpu()) {
      visit(tensors, i);
      continue;
    }
    std::vector<at::Tensor> chunk(tensors.size());
    for (int64_t begin = 0; begin < numel; begin += kChunk) {
      for (size_t k = 0; k < tensors.size(); ++k) {
        if (tensors[k].defined()) {
          chunk[k] = tensors[k].narrow(0, begin, std::min(kChunk, numel - begin));
        }
      }
      visit(chunk, i);
    }
  }
}

void run_fused(const RuleCall& call, const std::function<void(const RuleCall& padded)>& kernel) {
  if (!call.parameters[0].is_cpu() || call.parameters[0].element_size() < 4) {
    kernel(call);
    return;
  }
  RuleCall unpadded = call;
  RuleCall padded;
  padded.first = call.first;
  padded.state.resize(call.state.size());
  const std::vector<std::vector<at::Tensor>*> from = lists_of(unpadded);
  const std::vector<std::vector<at::Tensor>*> to = lists_of(padded);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // Place and copy of each rest.
  for (size_t i = 0; i < call.parameters.size(); ++i) {
    const int64_t rest = call.parameters[i].numel() % kLanes;
    const int64_t kept = call.parameters[i].numel() - rest;
    padded.steps.insert(padded.steps.end(), (kept > 0 ? 1 : 0) + (rest > 0 ? 1 : 0), call.steps[i]);
    for (size_t k = 0; k < from.size(); ++k) {
      const at::Tensor& tensor = (*from[k])[i];
      if (kept > 0) {
        const bool cut = rest > 0 && tensor.defined();
        to[k]->push_back(cut ? memory_of(tensor).narrow(0, 0, kept) : tensor);
      }
      if (rest > 0) {
        at::Tensor& copy = to[k]->emplace_back();
        if (tensor.defined()) {
          copy = at::zeros({kLanes}, tensor.options());
          copies.emplace_back(memory_of(tensor).narrow(0, kept, rest), copy);
          copy_memory(copy, copies.back().first);
        }
        if (k == 1) {
          copies.pop_back();  // Gradients are only read.
        }
      }
    }
  }
  if (!padded.parameters.empty()) {
    kernel(padded);
  }
  for (const auto& [place, copy] : copies) {
    copy_memory(place, copy);
    place.unsafeGetTensorImpl()->bump_version();  // Autograd does not see such a copy.
  }
}

at::Tensor scale_(const at::Tensor& tensor, double factor) {
  tensor.mul_(at::native::wrapped_scalar_tensor(factor));
  return tensor;
}

at::Tensor divided(const at::Tensor& tensor, double divisor) {
  return tensor.div(at::native::wrapped_scalar_tensor(divisor));
}

std::vector<at::Tensor> step_tensors(const RuleCall& call) {
  if (!call.device_steps.empty()) {
    return call.device_steps;
  }
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < call.steps.size(); ++i) {
    if (i > 0 && call.steps[i] == call.steps[i - 1]) {
      tensors.push_back(tensors.back());
    } else {
      tensors.push_back(
          at::full({}, call.steps[i], call.parameters[i].options().dtype(at::kFloat)));
    }
  }
  return tensors;
}

void descend_(
    const at::Tensor& parameter, const at::Tensor& direction, const RuleCall& call, double lr) {
  if (!call.device_lr.defined()) {
    parameter.add_(direction, -lr);
    return;
  }
  // A 0-d factor would be rounded to the dtype of a half-precision parameter; a 1-D one is not.
  memory_of(parameter).sub_(memory_of(direction).mul(call.device_lr.view({1})));
}

void decay_(const at::Tensor& parameter, double weight_decay, const RuleCall& call, double lr) {
  if (!call.device_lr.defined()) {
    scale_(parameter, 1 - lr * weight_decay);
    return;
  }
  memory_of(parameter).mul_(at::rsub(call.device_lr.view({1}).mul(weight_decay), 1));
}

double bias_correction(const RuleCall& call, size_t index, double beta) {
  return 1 - std::pow(beta, static_cast<double>(call.steps[index]));
}

at::Tensor device_bias_correction(const RuleCall& call, size_t index, double beta) {
  return at::rsub(at::pow(beta, call.device_steps[index].to(at::kDouble)), 1);
}

at::Tensor device_factor(const at::Tensor& number, const at::Tensor& tensor) {
  return number.to(tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).view({1});
}

}  // namespace lockstep::optim
