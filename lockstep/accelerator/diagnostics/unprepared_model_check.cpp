// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/unprepared_model_check.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep::internal {
namespace {

/// Returns the leaves of the graph of `loss` that a backward gives gradients, in the graph's order.
std::vector<at::Tensor> leaves_of(const at::Tensor& loss) {
  std::vector<at::Tensor> leaves;
  std::set<const torch::autograd::Node*> visited;
  std::vector<torch::autograd::Node*> open{loss.grad_fn().get()};
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !visited.insert(node).second) {
      continue;
    }
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      leaves.push_back(leaf->variable);
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      open.push_back(edge.function.get());
    }
  }
  return leaves;
}

uint32_t checksum(const std::vector<at::Tensor>& tensors) {
  uint32_t crc = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
    crc = crc32c(crc, here.const_data_ptr(), here.nbytes());
  }
  return crc;
}

/// Appends the first elements of a tensor as bytes.
void append_elements(std::string& bytes, const at::Tensor& tensor) {
  constexpr int64_t kMostCompared = 64;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor flat = tensor.detach().reshape({-1});
  const at::Tensor first =
      flat.narrow(0, 0, std::min(flat.numel(), kMostCompared)).to(at::kCPU).contiguous();
  bytes.append(static_cast<const char*>(first.const_data_ptr()), first.nbytes());
}

}  // namespace

// --- UnpreparedLeaves

void UnpreparedLeaves::read_graph(const at::Tensor& loss, const std::set<const void*>& prepared) {
  std::vector<at::Tensor> leaves = leaves_of(loss);
  std::erase_if(leaves, [&](const at::Tensor& leaf) {
    return prepared.contains(leaf.unsafeGetTensorImpl());
  });
  // A batch is in one graph only; trained parameters are in the next one, too.
  in_both_graphs_ = leaves;
  std::erase_if(in_both_graphs_, [&](const at::Tensor& leaf) {
    return std::none_of(last_leaves_.begin(), last_leaves_.end(), [&](const at::Tensor& seen) {
      return seen.is_same(leaf);
    });
  });
  last_leaves_ = std::move(leaves);
}

void UnpreparedLeaves::compare(Group& group) {
  const std::vector<at::Tensor> in_both_graphs = std::exchange(in_both_graphs_, {});
  ++checks_;
  if (is_finished()) {
    last_leaves_.clear();
  }
  if (checks_ == 1) {
    return;  // On all ranks: nothing was updated yet.
  }
  struct Mine {
    uint64_t leaves;
    uint64_t checksum;
  } mine{in_both_graphs.size(), checksum(in_both_graphs)};
  std::string bytes(sizeof(mine), '\0');
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  const std::vector<std::string> all = all_gather_bytes(group, bytes);
  const bool same_leaves = std::all_of(all.begin(), all.end(), [&](const std::string& theirs) {
    return theirs.substr(0, sizeof(mine.leaves)) == bytes.substr(0, sizeof(mine.leaves));
  });
  const bool differ = std::any_of(
      all.begin(), all.end(), [&](const std::string& theirs) { return theirs != bytes; });
  if (!same_leaves || !differ || in_both_graphs.empty()) {
    return;
  }
  checks_ = kMaxChecks;
  last_leaves_.clear();
  log_warning(fmt::format(
      "{} trained parameters (first: shape [{}]) belong to no prepared model and differ between "
      "processes; pass their model and optimizer to prepare, or average their gradients with "
      "accelerator.reduce; ignore this if they should differ",
      in_both_graphs.size(),
      fmt::join(in_both_graphs.front().sizes(), ", ")));
}

// --- UnpreparedModelCheck

void UnpreparedModelCheck::loss_given(const GivenLoss& given) {
  expect_model();
  has_read_graph_ = !given.by_program && must_compare();
  if (has_read_graph_) {
    leaves_.read_graph(given.loss, objects_.parameters());
  }
}

void UnpreparedModelCheck::backward_ended() {
  if (std::exchange(has_read_graph_, false)) {
    Group group = objects_.context.mesh.replicas;
    leaves_.compare(group);
  }
}

void UnpreparedModelCheck::gradients_complete(const Optimizer& optimizer) {
  const void* const id = &optimizer.inner();
  if (objects_.has_optimizer(optimizer) && objects_.context.has_replicas() &&
      !optimizer.is_sharded() && !equal_optimizers_.contains(id) && agree(optimizer.parameters())) {
    equal_optimizers_.insert(id);
  }
}

void UnpreparedModelCheck::expect_model() const {
  // A prepared optimizer compares the gradients, which the program may average itself.
  const int processes = objects_.context.size();
  if (objects_.models.empty() && objects_.optimizers.empty() && processes > 1) {
    throw ConfigError(
        "backward",
        fmt::format(
            "no model is prepared in a job of {} processes, so no gradients would be averaged; "
            "call prepare(model, optimizer, ...) first, or loss.backward() for gradients that stay "
            "on their process and are not averaged",
            processes));
  }
}

/// Returns whether all processes take part in this backward and compare. With one model all do if
/// it averages; with more, some may not.
bool UnpreparedModelCheck::must_compare() const {
  return !leaves_.is_finished() && objects_.context.has_replicas() && objects_.models.size() == 1 &&
         !step_.is_joining() && local_sgds_.empty() && !step_.any_not_averaged() &&
         step_.sync_gradients() && step_.position().no_sync_depth == 0;
}

bool UnpreparedModelCheck::agree(const std::vector<at::Tensor>& parameters) const {
  if (step_.is_joining()) {
    return false;  // Some processes may have finished.
  }
  const std::set<const void*> prepared = objects_.parameters();
  size_t count = 0;
  std::string values, gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad() && !prepared.contains(parameter.unsafeGetTensorImpl())) {
      ++count;
      append_elements(values, parameter);
      if (parameter.grad().defined()) {
        append_elements(gradients, parameter.grad());
      }
    }
  }
  if (count == 0) {
    return true;
  }
  Group group = objects_.context.mesh.replicas;
  const std::vector<std::string> all = all_gather_bytes(group, values + "/" + gradients);
  const bool any_gradient = std::any_of(all.begin(), all.end(), [&](const std::string& theirs) {
    return theirs.size() > values.size() + 1;
  });
  const auto differs = [&](const std::string& theirs) { return theirs != all[0]; };
  if (any_gradient && std::any_of(all.begin(), all.end(), differs)) {
    throw ConfigError(
        "optimizer",
        fmt::format(
            "{} of this optimizer's {} parameters belong to no prepared model, and their values or "
            "gradients differ between processes; pass their model to prepare, or average their "
            "gradients with accelerator.reduce before step(); if they should differ, do not pass "
            "their optimizer to prepare",
            count,
            parameters.size()));
  }
  return any_gradient;
}

}  // namespace lockstep::internal
