// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/update/shared_memory_strategy.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/optim/flat/rule_calls.h"
#include "lockstep/optim/update/plain_strategy.h"

namespace lockstep::optim {
namespace {

// Full cache lines of any dtype, and libtorch's longest vectors.
constexpr int64_t kGrain = 64;

/// Appends `length` elements of tensor `index` of `from`, from `begin` on; if `length` < 0 the
/// tensor itself.
void append(RuleCall& to, const RuleCall& from, size_t index, int64_t begin, int64_t length) {
  const auto part = [&](const at::Tensor& tensor) {
    return tensor.defined() && length >= 0 ? memory_of(tensor).narrow(0, begin, length) : tensor;
  };
  to.parameters.push_back(part(from.parameters[index]));
  to.gradients.push_back(part(from.gradients[index]));
  for (size_t field = 0; field < from.state.size(); ++field) {
    to.state[field].push_back(part(from.state[field][index]));
  }
  to.steps.push_back(from.steps[index]);
  if (!from.factors.empty()) {
    to.factors.push_back(from.factors[index]);
  }
}

}  // namespace

size_t SharedMemoryStrategy::step() {
  const std::vector<RuleCalls> gathered = collect_calls(flat_groups_, steps_and_rates_);
  sharing_group_.barrier();  // All state exists, and no rank reads the old values any more.
  size_t count = 0;
  for (size_t group = 0; group < gathered.size(); ++group) {
    for (const RuleCall& call : gathered[group].calls()) {
      const RuleCall share = share_of(
          call, !flat_groups_.needs_full(group), sharing_group_.rank(), sharing_group_.size());
      count += share.parameters.size();
      if (!share.parameters.empty()) {
        flat_groups_.rule()->update(flat_groups_.options(group), share);
      }
    }
    gathered[group].copy_back();
  }
  sharing_group_.barrier();
  return count;
}

RuleCall share_of(const RuleCall& call, bool elementwise, int rank, int size) {
  RuleCall share;
  share.first = call.first;
  share.state.resize(call.state.size());
  int64_t total = 0;
  for (const at::Tensor& parameter : call.parameters) {
    total += parameter.numel();
  }
  int64_t before = 0;
  for (size_t i = 0; i < call.parameters.size(); ++i) {
    const int64_t numel = call.parameters[i].numel();
    if (elementwise) {
      const auto bound = [&](int64_t part) {
        return part == size ? numel : numel * part / size / kGrain * kGrain;
      };
      if (const int64_t length = bound(rank + 1) - bound(rank); length > 0) {
        append(share, call, i, bound(rank), length);
      }
    } else if ((2 * before + numel) * size / (2 * total) == rank) {  // The middle decides.
      append(share, call, i, 0, -1);
    }
    before += numel;
  }
  return share;
}

}  // namespace lockstep::optim
