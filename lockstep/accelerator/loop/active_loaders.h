// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/comm/group.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/data/sample/random.h"

namespace lockstep::internal {

/// The loops over one loader whose batches a backward has used.
struct TrainingLoops {
  int64_t ended = 0;
  int64_t last_batches = 0;  ///< Batches that a backward has used in the last ended one.
};

/// Tracks the running loops over prepared loaders, oldest first, and the current batch of each.
/// gather_for_metrics uses it to tell real samples from repeated ones.
class ActiveLoaders final : public data::LoaderObserver, public TrainingStepObserver {
 public:
  /// `rng_types` get the same state on all ranks of `group` at the start of each pass. `step`
  /// learns of passes and batches.
  ActiveLoaders(
      Group group, std::vector<data::RngType> rng_types, std::shared_ptr<TrainingStep> step);
  void pass_requested(const void* loader) override;
  void pass_started(const void* loader, bool from_its_beginning) override;
  void batch_started(const void* loader, const data::BatchInfo& info) override;
  void batch_ended(const void* loader) override;
  void pass_ended(const void* loader) override;

  /// Sets a function to call before a pass begins.
  void set_before_pass(std::function<void()> call) { before_pass_ = std::move(call); }
  /// Sets a function to call when the outermost training loop over a prepared loader has finished a
  /// batch that every rank had: a saved state is complete at that moment.
  void set_between_batches(std::function<void()> call) { between_batches_ = std::move(call); }
  /// Marks the running loops as training loops: a backward belongs to them.
  void backward_began() override;
  /// Returns whether a loop over this loader was ever marked as training.
  bool has_trained(const void* loader) const { return trained_.contains(loader); }

  /// Returns the training loops over this loader; null if no backward has used a batch of it.
  const TrainingLoops* training_loops(const void* loader) const;
  /// Begins to count training loops again, after ranks have read differently on purpose.
  void forget_training_loops() { loops_.clear(); }
  /// Forgets all loaders that no loop is running over.
  void forget();

  /// Returns the position to save. An evaluation that was left early begins the next epoch at its
  /// next pass; a training loop continues.
  data::Cursor position_to_save(const data::LoaderCore& loader) const;
  /// Returns whether the body of a loop over the loader has the last batch of its pass.
  bool is_at_last_batch(const data::LoaderCore& loader) const;

  /// Returns the newest batch of all running loops, or null outside any. A loop that was left at a
  /// batch with repeated samples counts until another batch begins: `*loader.begin()` is its batch.
  const data::BatchInfo* current() const;
  /// Returns whether a batch in use is the last of its pass for some rank. An accumulation group
  /// ends there on all ranks, though with uneven loaders some have one batch more. In use are the
  /// batches that began since the last micro-step: both of two loaders that are read together, and
  /// not that of an evaluation held open. See is_used().
  bool at_last_global_batch() const;

 private:
  bool is_outermost(const void* loader) const;
  void call_between_batches(const void* loader);

  Group group_;
  std::vector<data::RngType> rng_types_;
  std::shared_ptr<TrainingStep> step_;
  std::function<void()> before_pass_;
  std::function<void()> between_batches_;
  struct Pass {
    const void* loader;
    std::optional<data::BatchInfo> batch = std::nullopt;
    bool trains = false;
    bool has_batch = false;      ///< The loop has not asked for the batch after `batch`.
    bool in_use = false;         ///< `batch` began since the last micro-step.
    bool with_gradients = true;  ///< `batch` began with gradients enabled.
    bool steps = false;          ///< A backward has used one of its batches.
    int64_t unused_batches = 0;  ///< Batches since that backward.
    int64_t used_batches = 0;    ///< Batches that a backward has used.
    int64_t started = 0;         ///< Value of batches_started_ when `batch` began.
  };
  /// Returns whether the next micro-step trains on the batch of `pass`.
  bool is_used(const Pass& pass) const;

  std::vector<Pass> stack_;
  std::optional<data::BatchInfo> left_batch_;
  int64_t batches_started_ = 0;
  bool stepped_ = false;  ///< A backward has run since the last batch began.
  std::set<const void*> trained_;
  std::map<const void*, TrainingLoops> loops_;
};

}  // namespace lockstep::internal
