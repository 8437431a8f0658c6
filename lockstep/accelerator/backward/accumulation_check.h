// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// Detects updates by an optimizer that `prepare` did not return.
///
/// Such an update is wrong within an accumulation group, whose gradients are not averaged yet. It
/// is also wrong with fp16, whose gradients are still multiplied by the loss scale. torch's
/// optimizers cannot be intercepted, so this class notes one element of up to eight parameters
/// after a backward and compares them before the next one. SGD's writes change no version counter,
/// so values are compared. Only the first 100 backward passes are checked: a loop repeats the
/// mistake after each of them. A single change is accepted: a program may clamp its first weights,
/// or load others.
///
/// Cost: some small kernels after those backward passes, and a wait for the device. Not
/// thread-safe.
class AccumulationCheck {
 public:
  /// Watches `parameters`, of any shape and floating dtype. Drops the noted elements.
  void watch(NamedTensors parameters);
  /// Copies values at the start of a micro-step. A program that changes weights for one forward and
  /// backward restores them, which is no update.
  void begin();
  /// Notes elements with the largest gradients. A parameter without gradient is skipped.
  void note();
  /// Drops the noted elements, after a write that all ranks make in the same way.
  void forget() {
    samples_.clear();
    has_changed_ = false;
  }
  /// Compares the noted elements, and drops them. Returns a parameter that has changed, if one had
  /// changed after the previous micro-step, too.
  std::optional<NamedTensor> changed_again();

 private:
  struct Sample {
    NamedTensor parameter;
    int64_t index = 0;
    double value = 0;
  };
  struct Begin {
    const void* parameter = nullptr;
    at::Tensor values;  ///< The parameter's first elements.
  };
  bool is_as_at_begin(const Sample& sample, double now) const;
  void note(const NamedTensor& parameter);
  std::optional<NamedTensor> changed() const;

  NamedTensors parameters_;  ///< Smallest first.
  std::vector<Begin> begins_;
  std::vector<Sample> samples_;
  int64_t micro_steps_left_ = 100;
  bool has_changed_ = false;  ///< After the last noted micro-step.
};

}  // namespace lockstep
