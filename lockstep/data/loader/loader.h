// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>

#include "lockstep/data/device/copy_ahead.h"
#include "lockstep/data/loader/batch_source.h"
#include "lockstep/data/loader/dispatcher.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/data/loader/sequence_dataset.h"
#include "lockstep/data/loader/stream_batch_source.h"
#include "lockstep/data/loader/tensor_serializer.h"
#include "lockstep/data/sample/batch.h"
#include "lockstep/data/sample/collate.h"
#include "lockstep/data/sample/dataset.h"
#include "lockstep/data/sample/dataset_check.h"

namespace lockstep::data {

/// The batch type of a Loader over D.
template <typename D>
struct BatchOfDataset {
  using Type = typename D::Batch;
};
template <typename D>
requires(IterableDataset<D> && !Dataset<D>) struct BatchOfDataset<D> {
  using Type =
      decltype(collate_samples(std::declval<const D&>(), std::declval<std::vector<SampleOf<D>>>()));
};

/// Refuses a type that is not a dataset, with one compiler error that names the reason.
template <typename D>
class Loader {
 public:
  explicit Loader(D /*dataset*/, const LoaderOptions& /*options*/ = {}) { explain(); }
  Loader(D, const LoaderOptions&, const std::shared_ptr<const Sampler>&) { explain(); }
  Batch* begin() { return nullptr; }
  Batch* end() { return nullptr; }
  std::shared_ptr<LoaderCore> core() const { return nullptr; }

 private:
  static void explain() { explain_dataset_problem<problem_of_dataset<D>()>(); }
};

/// Iterates over a dataset in batches: `for (auto& batch : loader)` is one pass over it.
///
/// - Pass k follows epoch k's order; there is no set_epoch to call.
/// - Worker threads compute up to workers + prefetch_batches batches ahead. The batches and their
///   order are the same for any number of workers. Threads exist only during a pass.
/// - Random numbers that the dataset draws from torch depend on seed, epoch and sample alone; see
///   SampleRandomScope.
/// - An exception of the dataset is thrown at the batch that failed, and again if that iterator is
///   incremented again.
/// - With a device, batches are copied there ahead on a separate stream, see CopyAhead. Work on the
///   current stream may use a batch at once.
/// - The position is a Cursor. A pass can resume at any, without reading the skipped samples.
/// - A loop left early (break, exception) ends its pass at once; the next pass is the next epoch.
///
/// An IterableDataset is loaded in the same way, with the differences of StreamBatchSource. One
/// thread reads, a resumed pass reads and drops the skipped samples, and an error appears one batch
/// earlier. If sharded with dispatch_batches, rank 0 reads for all; see Dispatcher.
///
/// Copies are handles of the same loader. Memory: 8 bytes per sample and the batches ahead, on the
/// device if there is one. Modelled on torch's DataLoader.
template <typename D>
requires(Dataset<D> || IterableDataset<D>) class Loader<D> {
 public:
  using Batch = typename BatchOfDataset<D>::Type;

 private:
  struct State {
    State(D source, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler)
        : dataset(std::move(source)), core(source_info(dataset), options, std::move(sampler)) {
      // Others may block, or draw numbers.
      if constexpr (requires { requires D::kIsInMemory; }) {
        core.set_sample_checksum([this](int64_t index) {
          const c10::AutoGradMode no_grad(false);
          const std::array<int64_t, 1> indices = {index};
          return checksum_of(dataset.get_batch(indices));
        });
      }
    }
    static SourceInfo source_info(const D& dataset) {
      SourceInfo info{.streamed = !Dataset<D>, .transferable = Transferable<Batch>};
      if constexpr (SizedDataset<D>) {
        info.samples = dataset.size();
      }
      if constexpr (std::is_same_v<D, SequenceDataset>) {
        info.sequences = {.rows = dataset.rows(), .length = dataset.length()};
      }
      return info;
    }
    D dataset;
    LoaderCore core;
  };

  /// One loop over the loader: from begin() until the iterator is destroyed.
  class Pass {
   public:
    Pass(std::shared_ptr<State> state, int64_t skip)
        : state_(std::move(state)), plan_(state_->core.begin_pass(skip)) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
      source_.reset();  // Joins the workers first: they read the dataset and the plan.
      if (!done_) {
        state_->core.leave_pass();
      }
    }

    void start() {
      source_ = make_source();
      advance();
    }

    void advance() {
      if (failure_) {
        std::rethrow_exception(failure_);
      }
      try {
        if (current_) {
          state_->core.end_batch();
        }
        take_batch();
      } catch (...) {
        failure_ = std::current_exception();
        throw;
      }
    }

    bool done() const { return done_; }
    Batch& current() { return *current_; }

   private:
    void take_batch() {
      current_.reset();
      std::optional<RankBatches<PendingBatch<Batch>>> round = source_->next();
      if (!round) {
        source_.reset();
        done_ = true;
        state_->core.finish_pass();
        return;
      }
      current_ = copy_ahead_.receive(*std::move(round->batches.front()));
      state_->core.begin_batch(round->layout);
    }

    std::unique_ptr<BatchSource<PendingBatch<Batch>>> make_source() {
      const LoaderCore& core = state_->core;
      const ShardLayout layout = core.layout();
      const ShardSpec& spec = layout.spec();
      copy_ahead_ = CopyAhead(core.options().device);
      // Called on a worker or the dispatching thread, so the loop waits for neither copy nor
      // pinning.
      const SendBatch<Batch> send = [this](Batch batch) {
        return copy_ahead_.send(std::move(batch));
      };
      if constexpr (Transferable<Batch>) {
        if (core.dispatches()) {
          const std::function<Batch(Batch)> unchanged = [](Batch batch) { return batch; };
          auto source =
              spec.rank == 0 ? make_reader({.first = 0, .count = spec.world}, unchanged) : nullptr;
          return std::make_unique<Dispatcher<Batch>>(
              core.dispatch_group(), std::move(source), layout, core.cursor(), send);
        }
      }
      return make_reader({.first = spec.rank, .count = 1}, send);
    }

    /// `finish` is called with each batch on the thread that read it.
    template <typename Item>
    std::unique_ptr<BatchSource<Item>> make_reader(
        RankRange ranks, const std::function<Item(Batch)>& finish) {
      const State* state = state_.get();
      const LoaderCore& core = state->core;
      if constexpr (Dataset<D>) {
        return std::make_unique<MapBatchSource<Item>>(
            [state, finish](std::span<const int64_t> indices) {
              return finish(state->dataset.get_batch(indices));
            },
            plan_,
            core.cursor().batches,
            ranks,
            core.options(),
            core.random_key());
      } else {
        return std::make_unique<StreamBatchSource<D, Item>>(
            state->dataset,
            [state, finish](std::vector<SampleOf<D>> samples) {
              return finish(collate_samples(state->dataset, std::move(samples)));
            },
            core,
            ranks);
      }
    }

    std::shared_ptr<State> state_;
    std::shared_ptr<const ShardPlan> plan_;
    CopyAhead copy_ahead_;
    std::optional<Batch> current_;
    std::unique_ptr<BatchSource<PendingBatch<Batch>>>
        source_;                  ///< Its threads use all of the above.
    std::exception_ptr failure_;  ///< The exception that ended the pass; thrown again by advance().
    bool done_ = false;
  };

 public:
  /// Owns a pass; an input iterator. The batch may be moved from.
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(std::unique_ptr<Pass> pass) : pass_(std::move(pass)) {}
    Batch& operator*() const { return pass_->current(); }
    Batch* operator->() const { return &pass_->current(); }
    Iterator& operator++() {
      pass_->advance();
      return *this;
    }
    void operator++(int) { pass_->advance(); }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
      return iterator.pass_->done();
    }

   private:
    std::unique_ptr<Pass> pass_;
  };

  /// Throws ConfigError, naming the option, for a value out of range, and for a dataset without
  /// samples.
  explicit Loader(D dataset, const LoaderOptions& options = {})
      : state_(std::make_shared<State>(std::move(dataset), options, nullptr)) {}
  /// Uses the order of `sampler`: `shuffle` must be off, and `seed` affects only the dataset's
  /// random numbers.
  Loader(D dataset, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler) requires
      Dataset<D> : state_(std::make_shared<State>(
                       std::move(dataset), options, require_sampler(std::move(sampler)))) {}

  /// Constructs an empty handle, as Accelerator::free_memory leaves it. Using it throws
  /// ConfigError.
  explicit Loader(std::nullptr_t) {}

  /// Begins a pass. Throws ConfigError if one is running, since the two would share one position.
  Iterator begin() {
    auto pass = std::make_unique<Pass>(state(), *skip_);
    *skip_ = 0;
    pass->start();
    return Iterator(std::move(pass));
  }
  std::default_sentinel_t end() const { return {}; }

  /// Returns the number of batches of this rank in the running or next pass; fewer if the pass
  /// resumes a checkpoint with another number of ranks or another batch size.
  int64_t size() const requires SizedDataset<D> { return state()->core.layout().size(); }
  /// Returns the option: samples per batch of one rank, or of all ranks together with
  /// split_batches.
  int64_t batch_size() const { return state()->core.options().batch_size; }
  /// Returns the number of samples in a full global batch.
  int64_t total_batch_size() const { return state()->core.layout().global_batch_rows(); }
  /// Returns the number of samples in a pass over all ranks: the sampler's size if given, else the
  /// dataset's.
  int64_t dataset_size() const requires SizedDataset<D> { return state()->core.layout().samples(); }
  const D& dataset() const { return state()->dataset; }

  /// Restricts this loader to the batches of one rank. Repeating it with an equal `spec` does
  /// nothing. Throws ConfigError during a pass, and for another `spec` than before. Collective over
  /// `group`, the ranks' group, if `spec` has dispatch_batches; else `group` is not used.
  void shard(const ShardSpec& spec, Group group = {}) {
    state()->core.shard(spec, std::move(group));
  }
  bool is_sharded() const { return state()->core.is_sharded(); }

  /// Returns the epoch of the running or next pass.
  int64_t epoch() const { return state()->core.epoch(); }
  /// Returns the position of this rank. Inside the loop the current batch counts as consumed; after
  /// a full pass it is {epoch + 1, 0}. After a loop left early it is the position in that pass: a
  /// job resumed from it continues the epoch, while this loader's next pass begins the next epoch.
  Cursor cursor() const { return state()->core.cursor(); }
  /// Makes the next pass resume there; at the very end of an epoch that pass is empty. A cursor
  /// saved with another number of ranks or batch size needs resharded() first. Throws ConfigError
  /// for another seed, for a position past the end of the epoch, and during a pass.
  void load_cursor(const Cursor& cursor) { state()->core.load_cursor(cursor); }
  /// See LoaderCore::resharded().
  Cursor resharded(const Cursor& saved, int64_t saved_total_batch_size) const {
    return state()->core.resharded(saved, saved_total_batch_size);
  }

  /// Replaces the observer of passes and batches from the next pass on; null for none.
  void set_observer(std::shared_ptr<LoaderObserver> observer) {
    state()->core.set_observer(std::move(observer));
  }
  /// Returns the identity of this loader that observers receive.
  const void* id() const { return &state()->core; }
  /// Returns the part that does not depend on the dataset's type, for code that keeps many loaders.
  std::shared_ptr<LoaderCore> core() const {
    return std::shared_ptr<LoaderCore>(state(), &state_->core);
  }

  /// See skip_first_batches().
  Loader skipping(int64_t batches) const {
    state()->core.check_skip(batches);
    Loader loader = *this;
    loader.skip_ = std::make_shared<int64_t>(batches);
    return loader;
  }

 private:
  const std::shared_ptr<State>& state() const {
    if (!state_) {
      refuse_empty_loader();
    }
    return state_;
  }

  std::shared_ptr<State> state_;
  /// Batches that this handle's next pass skips.
  std::shared_ptr<int64_t> skip_ = std::make_shared<int64_t>(0);
};

/// Returns a handle of `loader` whose first pass skips the first `batches` batches of this rank.
///
/// Its later passes, and those of other handles, are full. A dataset is not read for skipped
/// batches; a stream is read, and its samples dropped. The handles share one position: the pass
/// after the shortened one is the next epoch, and a checkpoint within it resumes exactly. A loader
/// already at or past `batches` (load_cursor, load_state) keeps its position, so code that skips
/// after restoring, as with Accelerate, does not skip twice. So does a loader that resumes a
/// checkpoint with another number of ranks or another batch size, since `batches` then counts
/// batches of the saved run.
///
/// Throws ConfigError, the same on every rank, if `batches` is negative or exceeds the most batches
/// of any rank (not known for a stream). A rank with one batch less then has none left.
template <typename D>
Loader<D> skip_first_batches(const Loader<D>& loader, int64_t batches) {
  return loader.skipping(batches);
}

}  // namespace lockstep::data
