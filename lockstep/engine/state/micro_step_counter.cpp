// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/state/micro_step_counter.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

MicroStepCounter::MicroStepCounter(const ds_config::DsConfig& config, int ranks)
    : ranks_(ranks),
      counts_boundary_(config.managed_gradient_accumulation.value),
      gradient_accumulation_steps_(config.batch.gradient_accumulation_steps.value),
      micro_batch_size_(config.batch.train_micro_batch_size_per_gpu.value) {}

int64_t MicroStepCounter::train_batch_size() const {
  return micro_batch_size_ * gradient_accumulation_steps_ * ranks_;
}

void MicroStepCounter::set_train_batch_size(int64_t size) {
  const int64_t micro_step_size = micro_batch_size_ * ranks_;
  if (size < 1 || size % micro_step_size != 0) {
    throw ConfigError(
        "set_train_batch_size",
        fmt::format(
            "a batch size can only change the number of micro-steps; got {}, expected a multiple "
            "of {} samples ({} ranks of {})",
            size,
            micro_step_size,
            ranks_,
            micro_batch_size_));
  }
  gradient_accumulation_steps_ = size / micro_step_size;
}

void MicroStepCounter::set_micro_batch_size(int64_t size) {
  if (size < 1) {
    throw ConfigError(
        "set_train_micro_batch_size", fmt::format("got {}, expected at least 1", size));
  }
  micro_batch_size_ = size;
}

bool MicroStepCounter::is_boundary() const {
  return boundary_.value_or(
      steps_all_at_once_ || !counts_boundary_ ||
      (counts_.micro_steps + 1) % gradient_accumulation_steps_ == 0);
}

void MicroStepCounter::end_update(bool was_applied) {
  ++counts_.global_steps;
  counts_.global_samples += counts_boundary_ || steps_all_at_once_
                                ? train_batch_size()
                                : micro_batch_size_ * ranks_ * backward_passes_;
  backward_passes_ = 0;
  counts_.skipped_steps += was_applied ? 0 : 1;
}

}  // namespace lockstep
