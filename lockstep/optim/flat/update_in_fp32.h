// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// fp32 copies of the fp16 or bf16 tensors of a call; wider tensors are used directly. Memory:
/// twice those tensors.
class Fp32Copies {
 public:
  explicit Fp32Copies(const RuleCall& call);
  const RuleCall& wide() const { return wide_; }
  /// Writes the rounded copies back to parameters and state.
  void round_back() const;

 private:
  at::Tensor in_fp32(const at::Tensor& tensor);

  RuleCall wide_;
  std::vector<std::pair<at::Tensor, at::Tensor>> rounded_;  ///< Target and source.
};

/// Calls `update` with fp32 copies of the fp16 or bf16 tensors of `call`, and rounds the results
/// once. A kernel would round after each operation. A call with wider parameters is passed
/// unchanged. For elementwise rules: a copy has four MiB at a time for each of parameter, gradient
/// and state fields.
void update_in_fp32(const RuleCall& call, const std::function<void(const RuleCall& wide)>& update);

}  // namespace lockstep::optim
