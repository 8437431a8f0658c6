// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "lockstep/optim/flat/share_of.h"

namespace lockstep::optim {
namespace {

// Whole cache lines of any dtype, and libtorch's longest vectors.
constexpr int64_t kGrain = 64;

/// Elements of `from` tensor `index` from `begin` on; all of it, shaped as it is, if `length` < 0.
void append(Batch& to, const Batch& from, size_t index, int64_t begin, int64_t length) {
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

Batch share_of(const Batch& batch, bool elementwise, int rank, int size) {
  Batch share;
  share.first = batch.first;
  share.state.resize(batch.state.size());
  int64_t total = 0;
  for (const at::Tensor& parameter : batch.parameters) {
    total += parameter.numel();
  }
  int64_t before = 0;
  for (size_t i = 0; i < batch.parameters.size(); ++i) {
    const int64_t numel = batch.parameters[i].numel();
    if (elementwise) {
      const auto bound = [&](int64_t of) {
        return of == size ? numel : numel * of / size / kGrain * kGrain;
      };
      if (const int64_t length = bound(rank + 1) - bound(rank); length > 0) {
        append(share, batch, i, bound(rank), length);
      }
    } else if ((2 * before + numel) * size / (2 * total) == rank) {  // Whose stretch its middle is.
      append(share, batch, i, 0, -1);
    }
    before += numel;
  }
  return share;
}

}  // namespace lockstep::optim
