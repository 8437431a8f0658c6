// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/comm/group.h"
#include "lockstep/data/order/cursor.h"
#include "lockstep/data/order/sampler.h"
#include "lockstep/data/order/shard.h"
#include "lockstep/data/sample/sample_random.h"

namespace lockstep::data {

/// Options of a Loader. Constructing the Loader checks them.
struct LoaderOptions {
  int64_t batch_size = 1;  ///< Rows of a rank's batch; of all ranks together with split_batches.
  bool shuffle = false;    ///< Draws a new order in every epoch, from `seed`.
  bool drop_last = false;  ///< Drops the last round if it is not full.
  /// Seed of the shuffle and of the dataset's random numbers, see SampleRandomScope. Unlike
  /// Accelerate's it never comes from torch's generator: all ranks and resumed jobs get the same
  /// order and numbers. Loaders with one seed draw the same numbers for the same sample index.
  uint64_t seed = 0;
  /// Threads that compute batches ahead; 0: the loop computes them. At most 1 for an iterable
  /// dataset.
  int workers = 1;
  /// Batches computed ahead, and copied to `device`, in addition to one for each worker. No effect
  /// without workers.
  int prefetch_batches = 2;
  /// The device of the batches; unset: the device on which the dataset made them. See to_device().
  std::optional<at::Device> device = std::nullopt;
};

/// Describes one batch, for the end of an accumulation group and for dropping repeated samples.
struct BatchInfo {
  int64_t index = 0;               ///< Index in the pass, as in Cursor::batches.
  bool is_last = false;            ///< True for this rank's last batch of the pass.
  bool is_last_somewhere = false;  ///< True for any rank's last batch of the pass.
  bool ends_pass = false;          ///< True if no rank has a batch after it.
  int64_t rows = 0;                ///< Rows of this rank's batch.
  std::vector<int64_t> rows_per_rank;
  std::vector<int64_t> valid_rows;  ///< Per rank: leading rows that are not repeated.
};

/// Rows and length of a SequenceDataset.
struct SequenceForm {
  int64_t rows = 0;    ///< Rows of all ranks together; 0: not a SequenceDataset.
  int64_t length = 0;  ///< Time steps of a batch.
};

/// The properties of a dataset that a LoaderCore needs.
struct SourceInfo {
  /// Unset: a stream of unknown length. For a stream only a hint, which it may not keep.
  std::optional<int64_t> samples = std::nullopt;
  bool streamed = false;      ///< An iterable dataset.
  bool transferable = false;  ///< Its batches are Transferable.
  SequenceForm sequences = {};
};

/// Counts the passes of this rank over a loader. Ranks share its samples, so all must have the same
/// counts.
struct ReadPasses {
  int64_t to_end = 0;  ///< Passes whose last batch the loop has got.
  /// Checksum of the order of all ranks' samples in the running or last pass; 0 for a stream, for a
  /// loader of one rank, and if rank 0 reads for all.
  uint32_t order_checksum = 0;
};

/// Receives the events of a loop over a loader, on the loop's thread. `loader` is Loader::id(),
/// which is equal for all copies of one loader.
class LoaderObserver {
 public:
  LoaderObserver() = default;
  LoaderObserver(const LoaderObserver&) = delete;
  LoaderObserver& operator=(const LoaderObserver&) = delete;
  virtual ~LoaderObserver() = default;

  /// Called before a pass begins, when the loader's position may still be loaded. Its exception
  /// reaches the loop.
  virtual void pass_requested(const void* loader);
  /// `from_its_beginning`: false for a pass that resumes.
  virtual void pass_started(const void* loader, bool from_its_beginning);
  /// Called just before the loop's body sees the batch.
  virtual void batch_started(const void* loader, const BatchInfo& info);
  /// Called when the loop asks for the next batch; the loader's cursor counts this one.
  virtual void batch_ended(const void* loader);
  /// Called once for each pass_started that did not throw: at the end, after a break, or after an
  /// exception. In the last two cases it runs in a destructor, and its exception is logged.
  virtual void pass_ended(const void* loader);
};

/// Returns `sampler`. Throws ConfigError if it is null.
std::shared_ptr<const Sampler> require_sampler(std::shared_ptr<const Sampler> sampler);

/// Holds the parts of a Loader that do not depend on the dataset's type: options, shard, position,
/// observer.
///
/// The loader's workers do not use it.
class LoaderCore {
 public:
  /// `sampler`: null for the one of `options`, and for a stream.
  LoaderCore(
      const SourceInfo& source,
      const LoaderOptions& options,
      std::shared_ptr<const Sampler> sampler);

  const SourceInfo& source() const { return source_; }
  const LoaderOptions& options() const { return options_; }
  /// Returns the layout of the running or next pass. For a stream of unknown length it has 0
  /// samples, so only values that do not depend on their number are valid.
  ShardLayout layout() const {
    return layout_.with_first_sample(left_early_ ? 0 : cursor_.first_sample);
  }
  bool is_sharded() const { return sharded_; }
  /// Returns whether rank 0 reads for all.
  bool dispatches() const { return shard_.dispatch_batches && shard_.world > 1; }
  int64_t epoch() const { return cursor_.epoch + (left_early_ ? 1 : 0); }
  const Cursor& cursor() const { return cursor_; }
  /// Returns the key of the running or next pass.
  RandomKey random_key() const;
  /// Returns whether a loop was left at the cursor; the next pass is then the next epoch.
  bool left_early() const { return left_early_; }
  const std::shared_ptr<LoaderObserver>& observer() const { return observer_; }
  const ReadPasses& read_passes() const { return read_; }
  /// Begins to count again, after ranks have read differently on purpose.
  void forget_read_passes() { read_ = {.order_checksum = read_.order_checksum}; }
  /// Returns a checksum of a sample of the dataset, which it reads; nothing if it cannot.
  std::optional<uint32_t> sample_checksum(int64_t index) const;
  void set_sample_checksum(std::function<uint32_t(int64_t index)> checksum) {
    sample_checksum_ = std::move(checksum);
  }
  /// Sets the checksum of the running pass's order, for a sampler whose order() has only positions.
  void set_order_checksum(uint32_t checksum) { read_.order_checksum = checksum; }

  /// See Loader::shard. The batches of a SequenceDataset are always split. Collective over `group`
  /// if `spec` has dispatch_batches: a subgroup is made for it.
  void shard(const ShardSpec& spec, Group group = {});
  const Group& dispatch_group() const { return dispatch_group_; }
  /// Returns the argument of shard().
  const ShardSpec& spec() const { return shard_; }
  /// Applies from the next pass on. Throws ConfigError during a pass, before shard(), with
  /// dispatch_batches, and if the position would be past the end.
  void set_even_batches(bool even_batches);
  /// Throws as load_cursor would; changes nothing.
  void check_cursor(const Cursor& cursor) const;
  /// Converts `saved` to this loader's layout: no sample of the epoch is repeated or omitted.
  ///
  /// `saved_global_batch_rows`: samples of a full round of the saved layout. Returns `saved` itself
  /// if this layout has equal rounds; the very end of the epoch if no sample is left. If ranks have
  /// different numbers of batches, `saved` must be rank 0's, which has the most. drop_last drops
  /// the samples that do not fill a round of this layout. Throws ConfigError if `saved` is outside
  /// the data in its own layout.
  Cursor resharded(const Cursor& saved, int64_t saved_global_batch_rows) const;
  /// Throws ConfigError if the position of a SequenceDataset was saved with another number of rows.
  void check_rows(int64_t saved_global_batch_rows) const;
  void load_cursor(const Cursor& cursor);
  /// Sets the device of later passes. Throws ConfigError for CUDA if there is none.
  void set_device(at::Device device);
  void set_observer(std::shared_ptr<LoaderObserver> observer);

  /// Throws as skip_first_batches would; changes nothing.
  void check_skip(int64_t batches) const;
  /// Begins a pass, and returns its batches, of which the first `cursor().batches`, at least
  /// `skip`, are skipped. Null for a stream, and if another rank reads.
  std::shared_ptr<const ShardPlan> begin_pass(int64_t skip);
  /// Reports that the loop gets batch `cursor().batches`. `layout`: valid for this batch, and for
  /// whether another follows.
  void begin_batch(const ShardLayout& layout);
  /// Does the same for batches that no ShardLayout describes; `index` and `rows` are set here.
  void begin_batch(BatchInfo info);
  /// Reports that the loop is done with its batch.
  void end_batch();
  /// Reports that the loop is done with the last batch.
  void finish_pass();
  /// Reports that the loop was left early.
  void leave_pass() noexcept;

 private:
  /// Returns the value that must equal Cursor::seed: the sampler's seed, or the length of
  /// sequences.
  uint64_t order_seed() const;
  /// Returns the most batches of any rank in a pass; the largest int64 for a stream.
  int64_t max_batches(const ShardLayout& layout) const;
  /// `layout`: that of a full epoch.
  void check_position(const Cursor& cursor, const ShardLayout& layout) const;
  std::shared_ptr<const ShardPlan> make_plan(const Cursor& start);

  SourceInfo source_;
  LoaderOptions options_;
  std::shared_ptr<const Sampler> sampler_;  ///< Null for a stream.
  ShardLayout layout_;                      ///< The layout of a full epoch.
  Cursor cursor_;
  ReadPasses read_;
  std::function<uint32_t(int64_t index)> sample_checksum_;  ///< Empty: not known.
  Group dispatch_group_;
  std::shared_ptr<LoaderObserver> observer_;
  std::shared_ptr<LoaderObserver> pass_observer_;  ///< The observer of the running pass.
  ShardSpec shard_;                                ///< The argument of shard().
  bool sharded_ = false;
  bool running_ = false;
  bool left_early_ = false;  ///< See left_early().
};

/// Throws the ConfigError for a loader that free_memory has emptied.
[[noreturn]] void refuse_empty_loader();

}  // namespace lockstep::data
