// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/step/training_step_observer.h"
#include "lockstep/watch/flight_recorder.h"

namespace lockstep::internal {

/// Tells this process's flight recorder the number of each update.
class FlightStep final : public TrainingStepObserver {
 public:
  void after_update(const Update& update) override {
    if (!update.skipped) {
      watch::FlightRecorder::process().set_step(update.step);
    }
  }
};

}  // namespace lockstep::internal
