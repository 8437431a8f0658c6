// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// fp32 copies of what a batch has in fp16 or bf16: what is wider is in it itself. Memory: all of
/// that twice.
class WideCopies {
 public:
  explicit WideCopies(const Batch& batch);
  const Batch& wide() const { return wide_; }
  /// Parameters and state become what the copies round to.
  void round_back() const;

 private:
  at::Tensor widened(const at::Tensor& tensor);

  Batch wide_;
  std::vector<std::pair<at::Tensor, at::Tensor>> rounded_;  ///< What is to be written, and by what.
};

/// Calls `update` with fp32 copies of what `batch` has in fp16 or bf16, and rounds what it gives,
/// once; so a kernel that would round after each operation does not. Where parameters are wider it
/// gets `batch` itself. For elementwise rules: copies are of four MiB at a time, for each of
/// parameter, gradient and fields of state.
void update_in_fp32(const Batch& batch, const std::function<void(const Batch& wide)>& update);

}  // namespace lockstep::optim
