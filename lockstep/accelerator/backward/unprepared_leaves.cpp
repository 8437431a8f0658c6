// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/unprepared_leaves.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "lockstep/base/log.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {
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

}  // namespace

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

}  // namespace lockstep
