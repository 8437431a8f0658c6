// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/loader_core.h"
#include "lockstep/data/prefetcher.h"

namespace lockstep::data {

/// Hands out a dataset in batches: `for (auto& batch : loader)` is one pass over it.
///
/// - Pass k follows epoch k's order; nobody has to call set_epoch.
/// - Worker threads compute up to workers + prefetch_batches batches ahead. The batches and their
///   order are the same for any number of workers. No thread lives outside a pass.
/// - What the dataset throws for a batch is thrown where that batch would have been handed out.
/// - The position is a Cursor, and a pass can resume at any; what was skipped is not read.
/// - A loop left early (break, exception) ends its pass at once; the next pass is the next epoch.
///
/// Copies are handles of one and the same loader. Memory: 8 bytes a sample and the batches ahead.
/// Thread safety: none; a loader belongs to one thread at a time.
template <Dataset D>
class Loader {
  struct State {
    State(D source, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler)
        : dataset(std::move(source)), core(dataset.size(), options, std::move(sampler)) {}
    D dataset;
    LoaderCore core;
  };

  /// One loop over the loader: from begin() until the iterator dies.
  class Pass {
   public:
    explicit Pass(std::shared_ptr<State> state)
        : state_(std::move(state)), plan_(state_->core.begin_pass()) {}
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() {
      batches_.reset();  // Joins the workers first: they read the dataset and the plan.
      if (!done_) {
        state_->core.leave_pass();
      }
    }

    void start() {
      const LoaderOptions& options = state_->core.options();
      batches_.emplace(
          options.workers,
          options.prefetch_batches,
          state_->core.cursor().batches,
          plan_->size(),
          [state = state_.get(), plan = plan_.get()](int64_t index) {
            const std::vector<int64_t> indices = plan->indices(index);
            return state->dataset.get_batch(indices);
          });
      advance();
    }

    void advance() {
      current_.reset();
      if (batches_->done()) {
        batches_.reset();
        done_ = true;
        state_->core.finish_pass();
        return;
      }
      current_.emplace(batches_->next());
      state_->core.begin_batch();
    }

    bool done() const { return done_; }
    typename D::Batch& current() { return *current_; }

   private:
    std::shared_ptr<State> state_;
    std::shared_ptr<const ShardPlan> plan_;
    std::optional<typename D::Batch> current_;
    std::optional<Prefetcher<typename D::Batch>> batches_;
    bool done_ = false;
  };

 public:
  using Batch = typename D::Batch;

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
  /// Follows `sampler`, which decides the order: `shuffle` and `seed` must be left alone.
  Loader(D dataset, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler)
      : state_(std::make_shared<State>(
            std::move(dataset), options, require_sampler(std::move(sampler)))) {}

  /// Begins a pass. ConfigError if one is running: two at a time would share one position.
  Iterator begin() {
    auto pass = std::make_unique<Pass>(state_);
    pass->start();
    return Iterator(std::move(pass));
  }
  std::default_sentinel_t end() const { return {}; }

  /// Batches of this rank in a pass.
  int64_t size() const { return state_->core.layout().size(); }
  /// As the options say: of one rank, or of all ranks together when batches are split.
  int64_t batch_size() const { return state_->core.options().batch_size; }
  /// Samples all ranks together take in one full step.
  int64_t total_batch_size() const { return state_->core.layout().round_rows(); }
  /// Samples in a pass over all ranks: the dataset's size, or the sampler's if one was given.
  int64_t dataset_size() const { return state_->core.layout().samples(); }
  const D& dataset() const { return state_->dataset; }

  /// Leaves this loader only the batches of one rank. ConfigError during a pass, and if it was
  /// sharded otherwise before; sharding again in the same way does nothing.
  void shard(const ShardSpec& spec) { state_->core.shard(spec); }
  bool is_sharded() const { return state_->core.is_sharded(); }

  /// Epoch of the running or next pass.
  int64_t epoch() const { return state_->core.epoch(); }
  /// Position of this rank: inside the loop it counts the current batch, after a full pass it is
  /// {epoch + 1, 0}. After a loop left early it is where the loop was left: a job that stops there
  /// and is resumed misses nothing, while one that goes on begins the next epoch.
  Cursor cursor() const { return state_->core.cursor(); }
  /// The next pass resumes there. ConfigError for another seed, for a position past the end of the
  /// epoch, and during a pass. A cursor at the very end makes the next pass an empty one.
  void load_cursor(const Cursor& cursor) { state_->core.load_cursor(cursor); }

  /// Replaces the one to be told of passes and batches, from the next pass on; null for none.
  void set_observer(std::shared_ptr<LoaderObserver> observer) {
    state_->core.set_observer(std::move(observer));
  }
  /// What the observer gets to know this loader by.
  const void* id() const { return &state_->core; }
  /// The part that does not depend on the dataset's type, for code that keeps loaders of many.
  std::shared_ptr<LoaderCore> core() const {
    return std::shared_ptr<LoaderCore>(state_, &state_->core);
  }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::data
