// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader_core.h"

#include <exception>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::data {
namespace {

constexpr int kMaxWorkers = 1024;
constexpr int kMaxPrefetchBatches = 1 << 20;

std::shared_ptr<const Sampler> choose_sampler(
    int64_t dataset_size, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler) {
  if (!sampler) {
    if (options.shuffle) {
      return std::make_shared<RandomSampler>(dataset_size, options.seed);
    }
    return std::make_shared<SequentialSampler>(dataset_size);
  }
  if (options.shuffle || options.seed != 0) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "shuffle and seed have no effect beside a sampler; got shuffle = {}, seed = {}; "
            "give the seed to the sampler and leave both out",
            options.shuffle,
            options.seed));
  }
  return sampler;
}

void check_range(const char* option, int64_t value, int64_t min, int64_t max) {
  if (value < min || value > max) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "option {} is out of range; got {}, expected {} to {}", option, value, min, max));
  }
}

LoaderOptions checked(const LoaderOptions& options) {
  check_range("batch_size", options.batch_size, 1, int64_t{1} << 40);
  check_range("workers", options.workers, 0, kMaxWorkers);
  check_range("prefetch_batches", options.prefetch_batches, 0, kMaxPrefetchBatches);
  return options;
}

int64_t require_samples(int64_t dataset_size, const Sampler& sampler) {
  if (dataset_size < 1 || sampler.size() < 1) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the dataset is empty; got {} samples and a sampler of {}, expected at least one each",
            dataset_size,
            sampler.size()));
  }
  return sampler.size();
}

void refuse_during_pass(bool running, const char* call) {
  if (running) {
    throw ConfigError(
        "Loader", fmt::format("{} during a pass; end the loop over this loader first", call));
  }
}

}  // namespace

void LoaderObserver::pass_started(const void* /*loader*/) {}
void LoaderObserver::batch_started(const void* /*loader*/, const BatchInfo& /*info*/) {}
void LoaderObserver::pass_ended(const void* /*loader*/) {}

std::shared_ptr<const Sampler> require_sampler(std::shared_ptr<const Sampler> sampler) {
  if (!sampler) {
    throw ConfigError(
        "Loader", "the sampler is null; leave it out for the one the options ask for");
  }
  return sampler;
}

LoaderCore::LoaderCore(
    int64_t dataset_size, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler)
    : options_(checked(options)),
      dataset_size_(dataset_size),
      sampler_(choose_sampler(dataset_size, options, std::move(sampler))),
      layout_(
          require_samples(dataset_size, *sampler_),
          options.batch_size,
          options.drop_last,
          ShardSpec{}),
      cursor_{.seed = sampler_->seed()} {}

void LoaderCore::shard(const ShardSpec& spec) {
  refuse_during_pass(running_, "shard()");
  if (sharded_) {
    if (spec == shard_) {
      return;
    }
    throw ConfigError(
        "Loader",
        fmt::format(
            "sharded twice in different ways; was rank {} of {} (even_batches {}, split_batches "
            "{}), got rank {} of {} "
            "(even_batches {}, split_batches {}); prepare a loader once, or make another",
            shard_.rank,
            shard_.world,
            shard_.even_batches,
            shard_.split_batches,
            spec.rank,
            spec.world,
            spec.even_batches,
            spec.split_batches));
  }
  const ShardLayout layout(layout_.samples(), options_.batch_size, options_.drop_last, spec);
  check_position(cursor_, layout);
  layout_ = layout;
  shard_ = spec;
  sharded_ = true;
}

void LoaderCore::check_position(const Cursor& cursor, const ShardLayout& layout) {
  if (cursor.epoch < 0 || cursor.batches < 0 || cursor.batches > layout.size()) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the cursor points outside the data; got epoch {}, batch {}, expected an epoch from 0 "
            "and a batch from 0 "
            "to {}; was it saved with another dataset, batch_size or number of ranks?",
            cursor.epoch,
            cursor.batches,
            layout.size()));
  }
}

void LoaderCore::check_cursor(const Cursor& cursor) const {
  refuse_during_pass(running_, "load_cursor()");
  if (cursor.seed != sampler_->seed()) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the cursor belongs to another order of the data; got seed {}, expected this loader's "
            "seed {}; "
            "make the loader with .seed = {} to go on where it was saved",
            cursor.seed,
            sampler_->seed(),
            cursor.seed));
  }
  check_position(cursor, layout_);
}

void LoaderCore::load_cursor(const Cursor& cursor) {
  check_cursor(cursor);
  cursor_ = cursor;
  left_early_ = false;
}

void LoaderCore::set_observer(std::shared_ptr<LoaderObserver> observer) {
  observer_ = std::move(observer);
}

std::shared_ptr<const ShardPlan> LoaderCore::begin_pass() {
  if (running_) {
    throw ConfigError(
        "Loader",
        "a second loop began inside a loop over the same loader; the two would share one position; "
        "make another loader");
  }
  const Cursor start = left_early_ ? Cursor{cursor_.seed, cursor_.epoch + 1, 0} : cursor_;
  std::vector<int64_t> order = sampler_->order(start.epoch);
  for (const int64_t index : order) {
    if (index < 0 || index >= dataset_size_) {
      throw ConfigError(
          "Loader",
          fmt::format(
              "the sampler's order for epoch {} leaves the dataset; got index {}, expected 0 to {}",
              start.epoch,
              index,
              dataset_size_ - 1));
    }
  }
  auto plan = std::make_shared<const ShardPlan>(std::move(order), layout_);
  if (options_.drop_last && layout_.size() == 0) {
    log_warning(fmt::format(
        "this pass has no batches: drop_last with {} samples, fewer than the {} of one full round",
        layout_.samples(),
        layout_.round_rows()));
  }

  const auto before = std::pair(cursor_, left_early_);
  cursor_ = start;
  left_early_ = false;
  running_ = true;
  pass_observer_ = observer_;
  if (pass_observer_) {
    try {
      pass_observer_->pass_started(this);
    } catch (...) {
      std::tie(cursor_, left_early_) = before;
      running_ = false;
      pass_observer_.reset();
      throw;
    }
  }
  return plan;
}

void LoaderCore::begin_batch() {
  const int64_t index = cursor_.batches++;
  if (!pass_observer_) {
    return;
  }
  BatchInfo info;
  info.index = index;
  info.is_last = layout_.is_last(index);
  for (int rank = 0; rank < layout_.spec().world; ++rank) {
    info.rows_per_rank.push_back(layout_.rows(index, rank));
    info.valid_rows.push_back(layout_.valid_rows(index, rank));
  }
  info.rows = info.rows_per_rank[static_cast<size_t>(layout_.spec().rank)];
  pass_observer_->batch_started(this, info);
}

void LoaderCore::finish_pass() {
  cursor_ = {cursor_.seed, cursor_.epoch + 1, 0};
  running_ = false;
  if (const auto observer = std::exchange(pass_observer_, nullptr)) {
    observer->pass_ended(this);
  }
}

void LoaderCore::leave_pass() noexcept {
  left_early_ = true;
  running_ = false;
  const auto observer = std::exchange(pass_observer_, nullptr);
  if (!observer) {
    return;
  }
  try {
    observer->pass_ended(this);
  } catch (const std::exception& error) {
    log_error(error.what());
  } catch (...) {
    log_error("[Loader] an observer threw something unknown when a pass was left");
  }
}

}  // namespace lockstep::data
