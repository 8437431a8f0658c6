// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/named_tensor.h"

namespace lockstep {

/// Detects updates by an optimizer that `prepare` did not return.
///
/// It looks where such an update is wrong: within an accumulation group, whose gradients are not
/// averaged yet, and with fp16, whose gradients are still multiplied by the loss scale. torch's
/// optimizers cannot be intercepted, so this notes one element of up to eight parameters after a
/// backward, and compares them before the next one. SGD's writes change no version counter, so
/// values are compared. Only the first hundred backwards are looked at: a loop makes the mistake
/// after each of them. One change alone is let pass: a program may clamp its first weights, or load
/// others.
///
/// Cost: some small kernels after those backwards, and a wait for the device. Thread safety: none.
class AccumulationCheck {
 public:
  /// Watches `parameters`, of any shape and floating dtype. Drops the noted elements.
  void watch(NamedTensors parameters);
  /// Copies values at the begin of a micro-step. A program that changes weights for one forward and
  /// backward brings these back, which is no update.
  void begin();
  /// Notes elements whose gradients are largest. A parameter without gradient is left out.
  void note();
  /// Drops the noted elements, after a write that all ranks make alike.
  void forget() {
    samples_.clear();
    has_changed_ = false;
  }
  /// Compares what was noted, and forgets it. Returns a parameter that has changed, if one had
  /// after the micro-step noted before this one, too.
  std::optional<NamedTensor> changed_again();

 private:
  struct Sample {
    NamedTensor parameter;
    int64_t index = 0;
    double value = 0;
  };
  struct Begin {
    const void* parameter = nullptr;
    at::Tensor values;  ///< Its first elements.
  };
  bool is_as_at_begin(const Sample& sample, double now) const;
  void note(const NamedTensor& parameter);
  std::optional<NamedTensor> changed() const;

  NamedTensors parameters_;  ///< The smallest ones first.
  std::vector<Begin> begins_;
  std::vector<Sample> samples_;
  int64_t micro_steps_left_ = 100;
  bool has_changed_ = false;  ///< After the micro-step noted last.
};

}  // namespace lockstep
