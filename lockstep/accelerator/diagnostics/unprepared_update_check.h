// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::internal {

/// Notes single elements of parameters after a backward, and finds those that were changed since.
///
/// Values are compared since SGD's writes change no version counter. At most eight parameters are
/// noted, and only in the first 100 backward passes: a loop repeats the mistake after each of them.
/// A single change is accepted: a program may clamp its first weights, or load others. Cost: some
/// small kernels after those backward passes, and a wait for the device.
class ParameterSamples {
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
  struct FirstElements {
    const void* parameter = nullptr;
    at::Tensor values;
  };
  bool is_as_at_begin(const Sample& sample, double now) const;
  void note(const NamedTensor& parameter);
  std::optional<NamedTensor> changed() const;

  NamedTensors parameters_;  ///< Smallest first.
  std::vector<FirstElements> at_begin_;
  std::vector<Sample> samples_;
  int64_t micro_steps_left_ = 100;
  bool has_changed_ = false;  ///< After the last noted micro-step.
};

/// Refuses updates by an optimizer that `prepare` did not return.
///
/// Such an update is wrong within an accumulation group, whose gradients are not averaged yet, and
/// with fp16, whose gradients are still multiplied by the loss scale. torch's optimizers cannot be
/// intercepted, so parameters are sampled after a backward and compared before the next one. Cost:
/// that of ParameterSamples.
class UnpreparedUpdateCheck final : public TrainingStepObserver {
 public:
  UnpreparedUpdateCheck(const PreparedObjects& objects, const TrainingStep& step)
      : objects_(objects), step_(step) {}

  /// Chooses the parameters to watch.
  void objects_prepared() override;
  /// Throws ConfigError if parameters have changed since the last backward without a prepared
  /// optimizer's step.
  void before_micro_step() override { refuse_unprepared_update(); }
  void micro_step_began() override { samples_.begin(); }
  void loss_given(const GivenLoss& given) override;
  /// Notes parameters after a backward whose gradients no plain step() may use.
  void backward_ended() override;
  /// Accepts all changes so far.
  void equal_changes_made() override { samples_.forget(); }
  /// Stops watching.
  void objects_forgotten() override;

 private:
  void refuse_unprepared_update();

  const PreparedObjects& objects_;
  const TrainingStep& step_;
  ParameterSamples samples_;
  int64_t updates_when_noted_ = 0;  ///< TrainingStep::updates() then.
  size_t watched_models_ = 0;
};

}  // namespace lockstep::internal
