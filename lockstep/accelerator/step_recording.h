// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lockstep/accelerator/loop/step_recorder.h"
#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/comm/wait_observer.h"

namespace lockstep {

/// Records the steps of this process with AcceleratorOptions::record_steps, from start() on.
///
/// The recorder observes the waits of the thread that calls start(), until the destructor, on that
/// thread. Not thread-safe.
class StepRecording {
 public:
  /// Creates no file yet: a program may still refuse to use a folder that has one.
  explicit StepRecording(const RunContext& context) : context_(context) {}
  ~StepRecording();
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

  /// Opens the file. Does nothing without record_steps, and in later calls. Throws ConfigError,
  /// naming the file, if it cannot be opened.
  void start();
  /// Returns null before start(), and without record_steps.
  const std::shared_ptr<StepRecorder>& recorder() const { return recorder_; }

 private:
  const RunContext& context_;
  std::shared_ptr<StepRecorder> recorder_;
  std::shared_ptr<comm::WaitObserver> outer_;  ///< The observer before.
};

}  // namespace lockstep
