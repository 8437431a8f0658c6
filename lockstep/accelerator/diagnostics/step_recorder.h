// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/accelerator/step/training_step_observer.h"
#include "lockstep/comm/wait_observer.h"
#include "lockstep/tracking/steps/loop_timer.h"
#include "lockstep/tracking/steps/step_records.h"

namespace lockstep::internal {

/// Measures the updates of this process, and writes their records for `lockstep report`.
///
/// A record is written when an update has ended and 0.1 s have passed since the last one, so short
/// updates share a record. An update ends when the loop over the outermost prepared loader asks for
/// its next batch; without such a loop, at the end of step() of the first optimizer.
///
/// Times are those of the thread that constructs it, by the host's clock: nothing waits for a
/// device, whose work counts where the program waits for it. Cost: a clock read (20 ns) at each
/// change of the part, and 10 us a record.
class StepRecorder final : public comm::WaitObserver, public TrainingStepObserver {
 public:
  using Part = tracking::LoopPart;

  /// Throws ConfigError, naming `file`, if it cannot be opened.
  StepRecorder(
      const std::filesystem::path& file, const nlohmann::ordered_json& header, at::Device device);
  ~StepRecorder() override;

  void part_began(Part part) noexcept override;
  void part_ended() noexcept override;
  void begin_wait() noexcept override { part_began(Part::kCommunication); }
  void end_wait() noexcept override { part_ended(); }

  // --- events of the loop over a loader
  void batch_requested() override;
  void batch_began(int64_t rows) override;
  void loader_pass_began(const void* loader, bool outermost) override;
  void loader_pass_ended(const void* loader, bool outermost, bool trained) override;
  /// An update that the body made has ended, too.
  void body_ended() override;

  // --- events of an update
  /// Adds the loss of a micro-step. A loss on a device is not read, because that would wait.
  void loss_given(const GivenLoss& given) override;
  /// Adds a part of an update's loss. Given losses are then ignored.
  void loss_part_given(const at::Tensor& part) override;
  /// Records a step(); those of other optimizers than the first are not counted.
  void after_update(const Update& update) override;
  /// Forgets the first optimizer.
  void objects_forgotten() override { optimizer_ = nullptr; }

  void write_config(const nlohmann::json& config) { writer_.write_config(config); }
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

  void end_data();
  void end_update();
  void write_pending();

  tracking::StepRecordWriter writer_;
  at::Device device_;
  tracking::LoopTimer timer_;
  tracking::StepRecord record_;    ///< Updates that are not written yet.
  Sums sums_;                      ///< Of these updates.
  Sums open_;                      ///< Of micro-steps since the last end_update().
  tracking::PartTimes between_{};  ///< Time before them that belongs to no update.
  int64_t last_step_ = 0;          ///< The last update before `record_`.
  int64_t written_ns_;
  const void* optimizer_ = nullptr;  ///< The first one that made an update.
  int64_t updates_ = 0;              ///< Since the last end_update().
  /// [loader] The times when its running pass began.
  std::map<const void*, tracking::PartTimes> passes_;
  bool waits_for_data_ = false;
  bool has_backward_ = false;  ///< Since the last end_update().
  bool finished_ = false;
};

/// Records the steps of this process with AcceleratorOptions::record_steps, from start() on.
///
/// The recorder observes the waits of the thread that calls start(), until the destructor, on that
/// thread.
class ActiveStepRecorder {
 public:
  /// Creates no file yet: a program may still refuse to use a folder that has one.
  explicit ActiveStepRecorder(const RunContext& context) : context_(context) {}
  ~ActiveStepRecorder();
  ActiveStepRecorder(const ActiveStepRecorder&) = delete;
  ActiveStepRecorder& operator=(const ActiveStepRecorder&) = delete;

  /// Opens the file. Does nothing, and returns false, without record_steps and in later calls.
  /// Throws ConfigError, naming the file, if it cannot be opened.
  bool start();
  /// Returns null before start(), and without record_steps.
  const std::shared_ptr<StepRecorder>& active() const { return recorder_; }

 private:
  const RunContext& context_;
  std::shared_ptr<StepRecorder> recorder_;
  std::shared_ptr<comm::WaitObserver> outer_;  ///< The observer before.
};

}  // namespace lockstep::internal
