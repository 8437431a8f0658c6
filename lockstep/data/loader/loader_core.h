// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/comm/group.h"
#include "lockstep/data/loader/cursor.h"
#include "lockstep/data/loader/shard.h"
#include "lockstep/data/order/sampler.h"
#include "lockstep/data/sample/sample_random.h"

namespace lockstep::data {

struct LoaderOptions {
  int64_t batch_size =
      1;  ///< Rows a rank gets at a time; of all ranks together when batches are split.
  bool shuffle = false;    ///< A new order in every epoch, from `seed`.
  bool drop_last = false;  ///< Leave out the last round if it is not full.
  /// Of the shuffle, and of the random numbers that the dataset draws; see SampleRandomScope. Never
  /// drawn from torch's generator, unlike Accelerate's: ranks need not agree on one, and a resumed
  /// job sees the same order and the same numbers. Loaders of one seed draw alike: sample 7 of each
  /// has the same numbers.
  uint64_t seed = 0;
  /// Threads that compute batches ahead; 0: none, the loop computes its own. An iterable dataset
  /// is read by one at most.
  int workers = 1;
  /// Batches computed ahead, and copied to `device`, beside the one each worker is at; without
  /// effect when there are no workers.
  int prefetch_batches = 2;
  /// Where batches arrive; unset: where the dataset made them. See to_device().
  std::optional<at::Device> device = std::nullopt;
};

/// One batch as the accelerator must know it to drop wrapped duplicates and to end an accumulation
/// group.
struct BatchInfo {
  int64_t index = 0;               ///< In the pass as Cursor::batches counts, also after resuming.
  bool is_last = false;            ///< This rank's last one of the pass.
  bool is_last_somewhere = false;  ///< Or another rank's: with uneven ends some have one more.
  int64_t rows = 0;                ///< Of this rank's batch.
  std::vector<int64_t> rows_per_rank;
  std::vector<int64_t> valid_rows;  ///< Per rank: leading rows that are no duplicates.
};

/// The form of a SequenceDataset.
struct SequenceForm {
  int64_t rows = 0;    ///< Of all ranks together; 0: not a SequenceDataset.
  int64_t length = 0;  ///< Time steps of a batch.
};

/// What a LoaderCore has to know of the dataset.
struct SourceInfo {
  /// Unset: a stream of unknown length. Of a stream no more than a hint: it may yield others.
  std::optional<int64_t> samples = std::nullopt;
  bool streamed = false;      ///< An iterable dataset.
  bool transferable = false;  ///< Its batches are Transferable.
  SequenceForm sequences = {};
};

/// Told of what a loop does with a loader, on the loop's own thread. `loader` tells loaders apart:
/// it is Loader::id(), the same for all copies of one loader.
class LoaderObserver {
 public:
  LoaderObserver() = default;
  LoaderObserver(const LoaderObserver&) = delete;
  LoaderObserver& operator=(const LoaderObserver&) = delete;
  virtual ~LoaderObserver() = default;

  /// Before a pass begins: the loader's position may still be loaded. What it throws, the loop
  /// gets.
  virtual void pass_requested(const void* loader);
  /// `from_its_beginning`: not resumed within it.
  virtual void pass_started(const void* loader, bool from_its_beginning);
  /// Just before the loop's body sees the batch.
  virtual void batch_started(const void* loader, const BatchInfo& info);
  /// The loop is done with the batch and asks for more: the loader's cursor counts it.
  virtual void batch_ended(const void* loader);
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
  /// `sampler` null: the one that `options` ask for. A stream has none.
  LoaderCore(
      const SourceInfo& source,
      const LoaderOptions& options,
      std::shared_ptr<const Sampler> sampler);

  const SourceInfo& source() const { return source_; }
  const LoaderOptions& options() const { return options_; }
  /// Of the running or next pass. A stream of unknown length is laid out as if it had no samples:
  /// only what does not depend on their number means something.
  ShardLayout layout() const {
    return layout_.with_first_sample(left_early_ ? 0 : cursor_.first_sample);
  }
  bool is_sharded() const { return sharded_; }
  /// Whether rank 0 reads for all.
  bool dispatches() const { return shard_.dispatch_batches && shard_.world > 1; }
  int64_t epoch() const { return cursor_.epoch + (left_early_ ? 1 : 0); }
  const Cursor& cursor() const { return cursor_; }
  /// Of the running or next pass.
  RandomKey random_key() const;
  /// A loop was left at the cursor; the next pass is the next epoch.
  bool left_early() const { return left_early_; }
  const std::shared_ptr<LoaderObserver>& observer() const { return observer_; }

  /// A SequenceDataset's batches are always split: a batch has its rows, however many ranks share
  /// them. Collective over `group` if `spec` asks for dispatching, which happens on a group of its
  /// own.
  void shard(const ShardSpec& spec, Group group = {});
  const Group& dispatch_group() const { return dispatch_group_; }
  /// As it was asked for.
  const ShardSpec& spec() const { return shard_; }
  /// From the next pass on. ConfigError during a pass, before shard(), and where batches are
  /// dispatched, or the position lies past the end then.
  void set_even_batches(bool even_batches);
  /// What load_cursor would refuse; changes nothing.
  void check_cursor(const Cursor& cursor) const;
  /// The cursor that goes on, in this loader's layout, after all that was consumed where `saved`
  /// was saved, in a layout whose rounds had `saved_global_batch_rows` samples: none of the epoch's
  /// samples comes twice, none is left out. `saved` itself where the rounds have that size here
  /// too; the very end of the epoch where nothing is left of it.
  ///
  /// Where ranks have unequally many batches, `saved` must be rank 0's, which has the most. What
  /// drop_last leaves out at the end is what does not fill a round of this layout. ConfigError
  /// where `saved` points outside the data in its own layout.
  Cursor resharded(const Cursor& saved, int64_t saved_global_batch_rows) const;
  /// ConfigError where a SequenceDataset's position was saved with another number of rows.
  void check_rows(int64_t saved_global_batch_rows) const;
  void load_cursor(const Cursor& cursor);
  /// Batches of later passes arrive there. ConfigError for CUDA where there is none.
  void set_device(at::Device device);
  void set_observer(std::shared_ptr<LoaderObserver> observer);

  /// What skip_first_batches would refuse; changes nothing.
  void check_skip(int64_t batches) const;
  /// The batches of the pass that begins, `cursor().batches` of which are to be skipped, which is
  /// at least `skip`. Null for a stream, and where another rank does the reading.
  std::shared_ptr<const ShardPlan> begin_pass(int64_t skip);
  /// Batch `cursor().batches` is handed out. `layout`: right about this batch, and about whether
  /// another follows.
  void begin_batch(const ShardLayout& layout);
  /// The loop is done with the batch that was handed out last.
  void end_batch();
  /// All batches were handed out, and the loop is done with the last.
  void finish_pass();
  /// The loop was left early.
  void leave_pass() noexcept;

 private:
  /// What the cursor must agree on: the sampler's seed, or the length of sequences.
  uint64_t order_seed() const;
  /// Of any rank in a pass; of a stream, more than it could ever have.
  int64_t max_batches(const ShardLayout& layout) const;
  /// `layout`: of a whole epoch.
  void check_position(const Cursor& cursor, const ShardLayout& layout) const;
  std::shared_ptr<const ShardPlan> make_plan(const Cursor& start) const;

  SourceInfo source_;
  LoaderOptions options_;
  std::shared_ptr<const Sampler> sampler_;  ///< Null for a stream.
  ShardLayout layout_;                      ///< Of a whole epoch.
  Cursor cursor_;
  Group dispatch_group_;
  std::shared_ptr<LoaderObserver> observer_;
  std::shared_ptr<LoaderObserver> pass_observer_;  ///< The one that was told of the running pass.
  ShardSpec shard_;                                ///< As it was asked for.
  bool sharded_ = false;
  bool running_ = false;
  bool left_early_ =
      false;  ///< The cursor is where a loop was left; the next pass is the next epoch.
};

/// Throws the ConfigError of a loader that free_memory has emptied.
[[noreturn]] void refuse_empty_loader();

}  // namespace lockstep::data
