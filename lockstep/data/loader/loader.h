// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/device/copy_ahead.h"
#include "lockstep/data/loader/dispatcher.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/data/loader/sequence_dataset.h"
#include "lockstep/data/loader/steps.h"
#include "lockstep/data/loader/stream_steps.h"
#include "lockstep/data/sample/batch.h"
#include "lockstep/data/sample/collate.h"
#include "lockstep/data/sample/dataset.h"
#include "lockstep/data/sample/dataset_check.h"

namespace lockstep::data {

/// The batches a Loader over D hands out.
template <typename D>
struct BatchOfDataset {
  using Type = typename D::Batch;
};
template <typename D>
requires(IterableDataset<D> && !Dataset<D>) struct BatchOfDataset<D> {
  using Type =
      decltype(collate_samples(std::declval<const D&>(), std::declval<std::vector<SampleOf<D>>>()));
};

/// A Loader over what is no data set: the compiler says why in one line, and then nothing more.
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

/// Hands out a dataset in batches: `for (auto& batch : loader)` is one pass over it.
///
/// - Pass k follows epoch k's order; nobody has to call set_epoch.
/// - Worker threads compute up to workers + prefetch_batches batches ahead. The batches and their
///   order are the same for any number of workers. No thread lives outside a pass.
/// - Random numbers that the dataset draws from torch depend on seed, epoch and sample alone; see
///   SampleRandomScope.
/// - What the dataset throws for a batch is thrown where that batch would have been handed out, and
///   again by an iterator that is incremented again.
/// - With a device, batches ahead are copied there on a stream of their own, and wait there; see
///   CopyAhead. One that is handed out may be used at once by work on the current stream.
/// - The position is a Cursor, and a pass can resume at any; what was skipped is not read.
/// - A loop left early (break, exception) ends its pass at once; the next pass is the next epoch.
///
/// An IterableDataset is loaded likewise, with the differences that StreamSteps names: one thread
/// reads, a resumed pass reads and drops what it skips, and an error comes one batch earlier. If
/// sharded with dispatch_batches, rank 0 reads for all; see Dispatcher.
///
/// Copies are handles of one and the same loader. Memory: 8 bytes a sample and the batches ahead,
/// on the device where there is one.
/// Thread safety: none; a loader belongs to one thread at a time.
template <typename D>
requires(Dataset<D> || IterableDataset<D>) class Loader<D> {
 public:
  using Batch = typename BatchOfDataset<D>::Type;

 private:
  struct State {
    State(D source, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler)
        : dataset(std::move(source)), core(source_info(dataset), options, std::move(sampler)) {}
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

  /// One loop over the loader: from begin() until the iterator dies.
  class Pass {
   public:
    Pass(std::shared_ptr<State> state, int64_t skip)
        : state_(std::move(state)), plan_(state_->core.begin_pass(skip)) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
      steps_.reset();  // Joins the workers first: they read the dataset and the plan.
      if (!done_) {
        state_->core.leave_pass();
      }
    }

    void start() {
      steps_ = make_steps();
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
        take_step();
      } catch (...) {
        failure_ = std::current_exception();
        throw;
      }
    }

    bool done() const { return done_; }
    Batch& current() { return *current_; }

   private:
    void take_step() {
      current_.reset();
      std::optional<Step<Arriving<Batch>>> step = steps_->next();
      if (!step) {
        steps_.reset();
        done_ = true;
        state_->core.finish_pass();
        return;
      }
      current_ = copy_ahead_.receive(*std::move(step->batches.front()));
      state_->core.begin_batch(step->layout);
    }

    std::unique_ptr<Steps<Arriving<Batch>>> make_steps() {
      const LoaderCore& core = state_->core;
      const ShardLayout layout = core.layout();
      const ShardSpec& spec = layout.spec();
      copy_ahead_ = CopyAhead(core.options().device);
      // On a worker, or on the thread that dispatches: the loop need wait for neither the copy nor
      // the pinning.
      const SendBatch<Batch> send = [this](Batch batch) {
        return copy_ahead_.send(std::move(batch));
      };
      if constexpr (Transferable<Batch>) {
        if (core.dispatches()) {
          const std::function<Batch(Batch)> as_it_is = [](Batch batch) { return batch; };
          auto source =
              spec.rank == 0 ? read_steps({.first = 0, .count = spec.world}, as_it_is) : nullptr;
          return std::make_unique<Dispatcher<Batch>>(
              core.dispatch_group(), std::move(source), layout, core.cursor(), send);
        }
      }
      return read_steps({.first = spec.rank, .count = 1}, send);
    }

    /// `finish` is given each batch where it was read.
    template <typename Item>
    std::unique_ptr<Steps<Item>> read_steps(
        RankRange ranks, const std::function<Item(Batch)>& finish) {
      const State* state = state_.get();
      const LoaderCore& core = state->core;
      if constexpr (Dataset<D>) {
        return std::make_unique<MapSteps<Item>>(
            [state, finish](std::span<const int64_t> indices) {
              return finish(state->dataset.get_batch(indices));
            },
            plan_,
            core.cursor().batches,
            ranks,
            core.options(),
            core.random_key());
      } else {
        return std::make_unique<StreamSteps<D, Item>>(
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
    std::unique_ptr<Steps<Arriving<Batch>>> steps_;  ///< Its threads use all of the above.
    std::exception_ptr failure_;  ///< What ended the pass; asking again is no way around it.
    bool done_ = false;
  };

 public:
  /// Owns a pass; single use, as an input iterator is. The batch may be moved from.
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

  /// ConfigError, naming the option, for one out of range; and for a dataset without samples.
  explicit Loader(D dataset, const LoaderOptions& options = {})
      : state_(std::make_shared<State>(std::move(dataset), options, nullptr)) {}
  /// Follows `sampler`, which decides the order: `shuffle` must be left alone, and `seed` is that
  /// of the dataset's random numbers alone.
  Loader(D dataset, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler) requires
      Dataset<D> : state_(std::make_shared<State>(
                       std::move(dataset), options, require_sampler(std::move(sampler)))) {}

  /// An empty handle, as Accelerator::free_memory leaves it. Using it is a ConfigError.
  explicit Loader(std::nullptr_t) {}

  /// Begins a pass. ConfigError if one is running: two at a time would share one position.
  Iterator begin() {
    auto pass = std::make_unique<Pass>(state(), *skip_);
    *skip_ = 0;
    pass->start();
    return Iterator(std::move(pass));
  }
  std::default_sentinel_t end() const { return {}; }

  /// Batches of this rank in the running or next pass: fewer than usual in one that goes on where
  /// another layout was left.
  int64_t size() const requires SizedDataset<D> { return state()->core.layout().size(); }
  /// As the options say: of one rank, or of all ranks together when batches are split.
  int64_t batch_size() const { return state()->core.options().batch_size; }
  /// Samples all ranks together take in one full step.
  int64_t total_batch_size() const { return state()->core.layout().global_batch_rows(); }
  /// Samples in a pass over all ranks: the dataset's size, or the sampler's if one was given.
  int64_t dataset_size() const requires SizedDataset<D> { return state()->core.layout().samples(); }
  const D& dataset() const { return state()->dataset; }

  /// Leaves this loader only the batches of one rank. ConfigError during a pass, and if it was
  /// sharded otherwise before; sharding again in the same way does nothing.
  /// Collective over `group`, that of the ranks, if `spec` asks for dispatch_batches; not used
  /// else.
  void shard(const ShardSpec& spec, Group group = {}) {
    state()->core.shard(spec, std::move(group));
  }
  bool is_sharded() const { return state()->core.is_sharded(); }

  /// Epoch of the running or next pass.
  int64_t epoch() const { return state()->core.epoch(); }
  /// Position of this rank: inside the loop it counts the current batch, after a full pass it is
  /// {epoch + 1, 0}. After a loop left early it is where the loop was left: a job that stops there
  /// and is resumed misses nothing, while one that goes on begins the next epoch.
  Cursor cursor() const { return state()->core.cursor(); }
  /// The next pass resumes there. ConfigError for another seed, for a position past the end of the
  /// epoch, and during a pass. A cursor at the very end makes the next pass an empty one. One that
  /// was saved with another number of ranks or batch size goes through resharded() first.
  void load_cursor(const Cursor& cursor) { state()->core.load_cursor(cursor); }
  /// See LoaderCore::resharded().
  Cursor resharded(const Cursor& saved, int64_t saved_total_batch_size) const {
    return state()->core.resharded(saved, saved_total_batch_size);
  }

  /// Replaces the one to be told of passes and batches, from the next pass on; null for none.
  void set_observer(std::shared_ptr<LoaderObserver> observer) {
    state()->core.set_observer(std::move(observer));
  }
  /// What the observer gets to know this loader by.
  const void* id() const { return &state()->core; }
  /// The part that does not depend on the dataset's type, for code that keeps loaders of many.
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
  std::shared_ptr<int64_t> skip_ = std::make_shared<int64_t>(0);  ///< Of this handle's next pass.
};

/// A handle of `loader` whose first pass hands out none of the epoch's first `batches` batches of
/// this rank; its later passes, and those of other handles, are whole. A dataset is not asked for
/// what is skipped; a stream is read and its samples dropped.
///
/// It is the same loader: there is one position, so the pass after the shortened one is the next
/// epoch, whichever handle it uses, and a checkpoint taken within resumes where it was. A loader
/// that already stands at `batches` or later (load_cursor, load_state) is not moved: code that
/// skips after restoring, as Accelerate asks for, does not skip twice. Nor is one that goes on
/// where another layout was left: the count belongs to that layout, and the position is exact
/// already.
///
/// ConfigError, the same on every rank, for less than 0, or more than the rank with the most
/// batches has (of a stream that is not known). A rank with one batch less has none left then.
template <typename D>
Loader<D> skip_first_batches(const Loader<D>& loader, int64_t batches) {
  return loader.skipping(batches);
}

}  // namespace lockstep::data
