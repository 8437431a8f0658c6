// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/loader_core.h"

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/memory/crc32c.h"
#include "lockstep/data/loader/loader_checks.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMaxStreamSamples = int64_t{1} << 61;  // Leaves space for a few rounds beyond.

Cursor next_epoch(const Cursor& cursor) {
  return {.seed = cursor.seed, .epoch = cursor.epoch + 1, .batches = 0, .first_sample = 0};
}

void refuse_during_pass(bool running, const char* call) {
  if (running) {
    throw ConfigError(
        "Loader", fmt::format("{} during a pass; end the loop over this loader first", call));
  }
}

}  // namespace

void LoaderObserver::pass_requested(const void* /*loader*/) {}
void LoaderObserver::pass_started(const void* /*loader*/, bool /*from_its_beginning*/) {}
void LoaderObserver::batch_ended(const void* /*loader*/) {}
void LoaderObserver::batch_started(const void* /*loader*/, const BatchInfo& /*info*/) {}
void LoaderObserver::pass_ended(const void* /*loader*/) {}

LoaderCore::LoaderCore(
    const SourceInfo& source, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler)
    : source_(source),
      options_(checked_options(source, options, sampler != nullptr)),
      sampler_(choose_sampler(source, options, std::move(sampler))),
      layout_(
          require_samples(source, sampler_.get()),
          options.batch_size,
          options.drop_last,
          ShardSpec{}),
      cursor_{.seed = order_seed()} {
  register_sample_random();  // Early, while few other threads use torch.
}

RandomKey LoaderCore::random_key() const {
  return {.seed = options_.seed, .sampler_seed = sampler_ ? sampler_->seed() : 0, .epoch = epoch()};
}

std::optional<uint32_t> LoaderCore::sample_checksum(int64_t index) const {
  if (!sample_checksum_) {
    return std::nullopt;
  }
  try {
    return sample_checksum_(index);
  } catch (const std::exception&) {
    return std::nullopt;  // The loop reports it, at the batch with this sample.
  }
}

uint64_t LoaderCore::order_seed() const {
  if (source_.sequences.rows > 0) {
    return static_cast<uint64_t>(source_.sequences.length);
  }
  return sampler_ ? sampler_->seed() : 0;
}

int64_t LoaderCore::max_batches(const ShardLayout& layout) const {
  // No rank has more than rank 0. A stream's size() is only a hint.
  return source_.streamed ? (kMaxStreamSamples - layout.first_sample()) / layout.global_batch_rows()
                          : layout.size(0);
}

void LoaderCore::shard(const ShardSpec& asked, Group group) {
  refuse_during_pass(running_, "shard()");
  ShardSpec spec = asked;
  if (const int64_t rows = source_.sequences.rows; rows > 0) {
    spec.split_batches = true;
    check_rows_divide(rows, spec.world);
  }
  if (sharded_) {
    if (spec == shard_) {
      return;
    }
    refuse_other_shard(shard_, spec);
  }
  const ShardLayout layout(layout_.samples(), options_.batch_size, options_.drop_last, spec);
  check_position(cursor_, layout);
  if (spec.dispatch_batches && spec.world > 1) {
    check_dispatch(spec, group, source_.transferable);
    // A separate group, since batches are sent in parallel with the training's operations.
    dispatch_group_ = group.split(0, spec.rank);
  }
  layout_ = layout;
  shard_ = spec;
  sharded_ = true;
}

void LoaderCore::check_position(const Cursor& cursor, const ShardLayout& layout) const {
  const int64_t max_sample = source_.streamed ? kMaxStreamSamples : layout.samples();
  if (cursor.first_sample < 0 || cursor.first_sample > max_sample) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the cursor is outside the data; got first_sample {}, expected 0 to {}; use the "
            "dataset with which it was saved",
            cursor.first_sample,
            max_sample));
  }
  const int64_t max = max_batches(layout.with_first_sample(cursor.first_sample));
  if (cursor.epoch < 0 || cursor.batches < 0 || cursor.batches > max) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the cursor is outside the data; got epoch {}, batch {}, expected an epoch from 0 and "
            "a batch from 0 to {}; use the dataset, batch_size and number of ranks with which it "
            "was saved",
            cursor.epoch,
            cursor.batches,
            max));
  }
}

void LoaderCore::check_cursor(const Cursor& cursor) const {
  refuse_during_pass(running_, "load_cursor()");
  const uint64_t seed = order_seed();
  if (cursor.seed != seed && source_.sequences.rows > 0) {
    throw ConfigError(
        "sequence_loader",
        fmt::format(
            "the position was saved with another length; got {} time steps per batch, expected "
            "this loader's {}; make the loader with .length = {} to continue there",
            cursor.seed,
            seed,
            cursor.seed));
  }
  if (cursor.seed != seed) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the cursor was saved with another order of the data; got seed {}, expected this "
            "loader's seed {}; make the loader with .seed = {} to continue there",
            cursor.seed,
            seed,
            cursor.seed));
  }
  check_position(cursor, layout_);
}

void LoaderCore::check_rows(int64_t saved_global_batch_rows) const {
  const int64_t rows = source_.sequences.rows;
  if (rows > 0 && saved_global_batch_rows != rows) {
    throw ConfigError(
        "sequence_loader",
        fmt::format(
            "the position was saved with another number of rows, which splits the corpus "
            "differently; got {} rows, expected this loader's {}; make the loader with .rows = {} "
            "to continue there",
            saved_global_batch_rows,
            rows,
            saved_global_batch_rows));
  }
}

Cursor LoaderCore::resharded(const Cursor& saved, int64_t saved_global_batch_rows) const {
  check_rows(saved_global_batch_rows);
  // One rank that takes full rounds has the position of all ranks together.
  const ShardLayout before(
      layout_.samples(), saved_global_batch_rows, options_.drop_last, ShardSpec{});
  check_position(saved, before);
  if (saved_global_batch_rows == layout_.global_batch_rows()) {
    return saved;
  }
  const int64_t consumed = saved.first_sample + saved.batches * saved_global_batch_rows;
  return {
      .seed = saved.seed,
      .epoch = saved.epoch,
      .batches = 0,
      .first_sample = source_.streamed ? consumed : std::min(consumed, layout_.samples())};
}

void LoaderCore::load_cursor(const Cursor& cursor) {
  check_cursor(cursor);
  cursor_ = cursor;
  left_early_ = false;
}

void LoaderCore::set_even_batches(bool even_batches) {
  refuse_during_pass(running_, "set_even_batches()");
  if (!sharded_ || dispatches()) {
    throw ConfigError(
        "Loader",
        sharded_ ? "even_batches cannot change while batches are dispatched; pass it to shard()"
                 : "set_even_batches() was called before shard(); prepare the loader first");
  }
  ShardSpec spec = shard_;
  spec.even_batches = even_batches;
  const ShardLayout layout(layout_.samples(), options_.batch_size, options_.drop_last, spec);
  check_position(cursor_, layout);
  layout_ = layout;
  shard_ = spec;
}

void LoaderCore::set_device(at::Device device) {
  refuse_during_pass(running_, "set_device()");
  check_loader_device(source_, device);
  options_.device = device;
}

void LoaderCore::set_observer(std::shared_ptr<LoaderObserver> observer) {
  observer_ = std::move(observer);
}

void LoaderCore::check_skip(int64_t batches) const {
  // If the pass continues another layout's, the count belongs to that layout and is ignored.
  const int64_t max = layout().first_sample() > 0 ? kMaxStreamSamples : max_batches(layout_);
  if (batches < 0 || batches > max) {
    throw ConfigError(
        "skip_first_batches",
        fmt::format(
            "the number of batches to skip is out of range; got {}, expected 0 to {}",
            batches,
            max));
  }
}

std::shared_ptr<const ShardPlan> LoaderCore::make_plan(const Cursor& start) {
  if (!sampler_) {
    return nullptr;
  }
  std::vector<int64_t> order = sampler_->order(start.epoch);
  for (const int64_t index : order) {
    if (index < 0 || index >= *source_.samples) {
      throw ConfigError(
          "Loader",
          fmt::format(
              "the sampler's order for epoch {} has an index outside the dataset; got {}, expected "
              "0 to {}",
              start.epoch,
              index,
              *source_.samples - 1));
    }
  }
  if (shard_.world > 1 && !dispatches()) {
    read_.order_checksum = crc32c(0, order.data(), order.size() * sizeof(int64_t));
  }
  auto plan = std::make_shared<const ShardPlan>(
      std::move(order), layout_.with_first_sample(start.first_sample));
  // After the checks, so that all ranks report an invalid order.
  return dispatches() && shard_.rank != 0 ? nullptr : plan;
}

std::shared_ptr<const ShardPlan> LoaderCore::begin_pass(int64_t skip) {
  if (running_) {
    throw ConfigError(
        "Loader",
        "a second loop began inside a loop over the same loader; the two would share one position; "
        "make another loader");
  }
  if (observer_) {
    observer_->pass_requested(this);
  }
  check_skip(skip);
  Cursor start = left_early_ ? next_epoch(cursor_) : cursor_;
  if (start.first_sample == 0) {
    start.batches = std::max(start.batches, skip);
  }
  if (!source_.streamed && !dispatches()) {
    // This rank may have one batch less. If rank 0 reads for all, all ranks stay at one step.
    start.batches = std::min(start.batches, layout().size());
  }
  auto plan = make_plan(start);
  if (options_.drop_last && source_.samples && layout_.size() == 0) {
    log_warning(fmt::format(
        "this pass has no batches: drop_last drops all {} samples, fewer than the {} of one step "
        "of all ranks; use a smaller batch_size, or drop_last = false",
        layout_.samples(),
        layout_.global_batch_rows()));
  }

  const auto before = std::pair(cursor_, left_early_);
  cursor_ = start;
  left_early_ = false;
  running_ = true;
  pass_observer_ = observer_;
  if (pass_observer_) {
    try {
      pass_observer_->pass_started(this, start.batches == 0 && start.first_sample == 0);
    } catch (...) {
      std::tie(cursor_, left_early_) = before;
      running_ = false;
      pass_observer_.reset();
      throw;
    }
  }
  return plan;
}

void LoaderCore::begin_batch(const ShardLayout& layout) {
  const int64_t index = cursor_.batches;
  BatchInfo info;
  info.is_last = layout.is_last(index);
  info.ends_pass = true;
  for (int rank = 0; rank < layout.spec().world; ++rank) {
    info.ends_pass &= layout.size(rank) - 1 <= index;
    info.is_last_somewhere |= layout.size(rank) - 1 == index;
    info.rows_per_rank.push_back(layout.rows(index, rank));
    info.valid_rows.push_back(layout.valid_rows(index, rank));
  }
  begin_batch(std::move(info));
}

void LoaderCore::begin_batch(BatchInfo info) {
  info.index = cursor_.batches++;
  info.rows = info.rows_per_rank[static_cast<size_t>(shard_.rank)];
  if (pass_observer_) {
    pass_observer_->batch_started(this, info);
  }
}

void LoaderCore::end_batch() {
  if (pass_observer_) {
    pass_observer_->batch_ended(this);
  }
}

void LoaderCore::finish_pass() {
  ++read_.to_end;
  cursor_ = next_epoch(cursor_);
  running_ = false;
  if (const auto observer = std::exchange(pass_observer_, nullptr)) {
    observer->pass_ended(this);
  }
}

void LoaderCore::leave_pass() noexcept {
  if (!source_.streamed && cursor_.batches >= layout().size()) {
    ++read_.to_end;  // Another rank, with one batch less, has ended here.
  }
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
    log_error("[Loader] an observer threw an exception of unknown type when a pass ended early");
  }
}

void refuse_empty_loader() {
  throw ConfigError(
      "loader",
      "this loader is empty: free_memory() has released its dataset; construct another Loader");
}

}  // namespace lockstep::data
