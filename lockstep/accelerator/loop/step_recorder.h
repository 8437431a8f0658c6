// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/comm/wait_observer.h"
#include "lockstep/tracking/steps/step_records.h"
#include "lockstep/tracking/steps/step_times.h"

namespace lockstep {

/// Measures the updates of this process, and writes their records for `lockstep report`.
///
/// A record is written when an update has ended and 0.1 s have passed since the last one, so short
/// updates share a record. An update ends when the loop over the outermost prepared loader asks for
/// its next batch; without such a loop, at the end of step() of the first optimizer.
///
/// Times are those of the thread that constructs it, by the host's clock: nothing waits for a
/// device, whose work counts where the program waits for it. Cost: a clock read (20 ns) at each
/// change of the part, and 10 us a record. Not thread-safe.
class StepRecorder final : public comm::WaitObserver {
 public:
  using Part = tracking::StepPart;

  /// Throws ConfigError, naming `file`, if it cannot be opened.
  StepRecorder(
      const std::filesystem::path& file, const nlohmann::ordered_json& header, at::Device device);
  ~StepRecorder() override;

  void enter(Part part) noexcept;
  void leave() noexcept;
  void begin_wait() noexcept override { enter(Part::kCommunication); }
  void end_wait() noexcept override { leave(); }

  // --- events of the loop over a loader
  /// The loop waits for a batch, until end_data().
  void begin_data();
  void end_data();
  void add_samples(int64_t samples) { open_.samples += samples; }
  /// A pass begins. Returns the times until now, for end_pass.
  tracking::PartTimes begin_pass(bool outermost);
  void end_pass(bool outermost, bool trained, const tracking::PartTimes& at_its_begin);
  /// The loop's body has ended: so has an update that it made.
  void end_body();

  // --- events of an update
  /// Adds the loss of a micro-step. A loss on a device is not read, because that would wait.
  void note_loss(const at::Tensor& loss, double factor = 1);
  /// Adds a part of an update's loss, for an engine whose losses are divided already. The losses of
  /// note_loss are then ignored.
  void note_loss_part(const at::Tensor& part);
  /// Records a step() of `optimizer`; those of other optimizers than the first are not counted.
  void note_update(const void* optimizer, int64_t step, bool skipped, double lr);
  /// Forgets the first optimizer.
  void forget_optimizer() { optimizer_ = nullptr; }

  void write_config(const nlohmann::json& config) { file_.write_config(config); }
  /// Writes the updates that are not written yet.
  void flush() noexcept;
  /// Writes the remaining updates, and the status "finished". Later calls do nothing.
  void finish();

 private:
  /// Sums over micro-steps.
  struct Sums {
    double loss = 0;
    int64_t losses = 0;
    double loss_parts = 0;
    int64_t parts = 0;
    int64_t samples = 0;
  };

  void end_update();
  void write_pending();

  tracking::StepRecordFile file_;
  at::Device device_;
  tracking::StepTimes times_;
  tracking::StepRecord record_;    ///< Updates that are not written yet.
  Sums sums_;                      ///< Of these updates.
  Sums open_;                      ///< Of micro-steps since the last end_update().
  tracking::PartTimes between_{};  ///< Time before them that belongs to no update.
  int64_t last_step_ = 0;          ///< The last update before `record_`.
  int64_t written_ns_;
  const void* optimizer_ = nullptr;  ///< The first one that made an update.
  int64_t updates_ = 0;              ///< Since the last end_update().
  int passes_ = 0;                   ///< Running passes.
  bool waits_for_data_ = false;
  bool has_backward_ = false;  ///< Since the last end_update().
  bool finished_ = false;
};

/// RAII scope: this thread's time belongs to `part`. Does nothing with a null recorder.
class StepPartScope {
 public:
  StepPartScope(const std::shared_ptr<StepRecorder>& recorder, tracking::StepPart part)
      : recorder_(recorder.get()) {
    if (recorder_ != nullptr) {
      recorder_->enter(part);
    }
  }
  ~StepPartScope() {
    if (recorder_ != nullptr) {
      recorder_->leave();
    }
  }
  StepPartScope(const StepPartScope&) = delete;
  StepPartScope& operator=(const StepPartScope&) = delete;

 private:
  StepRecorder* recorder_;
};

}  // namespace lockstep
