// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/data/cursor.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/shard.h"

namespace lockstep::data {

struct LoaderOptions {
  int64_t batch_size =
      1;  ///< Rows a rank gets at a time; of all ranks together when batches are split.
  bool shuffle = false;    ///< A new order in every epoch, from `seed`.
  bool drop_last = false;  ///< Leave out the last round if it is not full.
  uint64_t seed = 0;       ///< Of the shuffle; without effect when nothing is shuffled.
  int workers = 1;  ///< Threads that compute batches ahead; 0: none, the loop computes its own.
  /// Batches computed ahead beside the one each worker is at; without effect when there are no
  /// workers.
  int prefetch_batches = 2;
};

/// One batch as the accelerator must know it to drop wrapped duplicates and to end an accumulation
/// group.
struct BatchInfo {
  int64_t index = 0;     ///< In the epoch, also after resuming.
  bool is_last = false;  ///< This rank's last one of the pass.
  int64_t rows = 0;      ///< Of this rank's batch.
  std::vector<int64_t> rows_per_rank;
  std::vector<int64_t> valid_rows;  ///< Per rank: leading rows that are no duplicates.
};

/// Told of what a loop does with a loader, on the loop's own thread. `loader` tells loaders apart:
/// it is Loader::id(), the same for all copies of one loader.
class LoaderObserver {
 public:
  LoaderObserver() = default;
  LoaderObserver(const LoaderObserver&) = delete;
  LoaderObserver& operator=(const LoaderObserver&) = delete;
  virtual ~LoaderObserver() = default;

  virtual void pass_started(const void* loader);
  /// Just before the loop's body sees the batch.
  virtual void batch_started(const void* loader, const BatchInfo& info);
  /// Once for each pass_started that did not throw: at the end, after a break, after an exception.
  /// What it throws in the last two cases is logged, for it runs in a destructor.
  virtual void pass_ended(const void* loader);
};

/// `sampler` itself; ConfigError if it is null.
std::shared_ptr<const Sampler> require_sampler(std::shared_ptr<const Sampler> sampler);

/// The part of a Loader that does not depend on the dataset's type: options, shard, position,
/// observer.
///
/// Thread safety: none; a loader belongs to one thread at a time. Its workers do not touch this
/// class.
class LoaderCore {
 public:
  /// `sampler` null: the one that `options` ask for, over `dataset_size` samples.
  LoaderCore(
      int64_t dataset_size, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler);

  const LoaderOptions& options() const { return options_; }
  const ShardLayout& layout() const { return layout_; }
  bool is_sharded() const { return sharded_; }
  int64_t epoch() const { return cursor_.epoch + (left_early_ ? 1 : 0); }
  const Cursor& cursor() const { return cursor_; }
  const std::shared_ptr<LoaderObserver>& observer() const { return observer_; }

  void shard(const ShardSpec& spec);
  /// What load_cursor would refuse; changes nothing.
  void check_cursor(const Cursor& cursor) const;
  void load_cursor(const Cursor& cursor);
  void set_observer(std::shared_ptr<LoaderObserver> observer);

  /// The batches of the pass that begins, `cursor().batches` of which are to be skipped.
  std::shared_ptr<const ShardPlan> begin_pass();
  /// Batch `cursor().batches` is handed out.
  void begin_batch();
  /// All batches were handed out, and the loop is done with the last.
  void finish_pass();
  /// The loop was left early.
  void leave_pass() noexcept;

 private:
  static void check_position(const Cursor& cursor, const ShardLayout& layout);

  LoaderOptions options_;
  int64_t dataset_size_;
  std::shared_ptr<const Sampler> sampler_;
  ShardLayout layout_;
  Cursor cursor_;
  std::shared_ptr<LoaderObserver> observer_;
  std::shared_ptr<LoaderObserver> pass_observer_;  ///< The one that was told of the running pass.
  ShardSpec shard_;                                ///< As it was asked for.
  bool sharded_ = false;
  bool running_ = false;
  bool left_early_ =
      false;  ///< The cursor is where a loop was left; the next pass is the next epoch.
};

}  // namespace lockstep::data
