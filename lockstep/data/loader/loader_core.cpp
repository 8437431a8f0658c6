// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/loader_core.h"

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <ATen/Context.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::data {
namespace {

constexpr int kMaxWorkers = 1024;
constexpr int kMaxPrefetchBatches = 1 << 20;
constexpr int64_t kMaxStreamSamples = int64_t{1} << 61;  // Leaves room for a few rounds beyond.

std::shared_ptr<const Sampler> choose_sampler(
    const SourceInfo& source,
    const LoaderOptions& options,
    std::shared_ptr<const Sampler> sampler) {
  const auto refuse_shuffle = [&](const char* why, const char* instead) {
    if (options.shuffle) {
      throw ConfigError("Loader", fmt::format("{}; got shuffle = true; {}", why, instead));
    }
  };
  if (source.streamed) {
    refuse_shuffle(
        "an iterable dataset decides its own order", "leave it out and shuffle in stream(epoch)");
    return nullptr;
  }
  if (sampler) {
    refuse_shuffle(
        "shuffle has no effect beside a sampler, which decides the order", "leave it out");
    return sampler;
  }
  if (options.shuffle) {
    return std::make_shared<RandomSampler>(*source.samples, options.seed);
  }
  return std::make_shared<SequentialSampler>(*source.samples);
}

void check_range(const char* option, int64_t value, int64_t min, int64_t max) {
  if (value < min || value > max) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "option {} is out of range; got {}, expected {} to {}", option, value, min, max));
  }
}

void check_device(const SourceInfo& source, const std::optional<at::Device>& device) {
  if (device && !device->is_cpu() && !source.transferable) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "cannot move batches of this type to {}: something in them is neither tensor, number "
            "nor string in a standard container; declare the fields of its structs with "
            "LOCKSTEP_FIELDS",
            device->str()));
  }
  if (device && device->is_cuda() && !at::hasCUDA()) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "cannot move batches to {}: no CUDA device can be used here; leave option device out, "
            "or try cpu",
            device->str()));
  }
}

void check_sequences(const SequenceForm& form, const LoaderOptions& options, bool has_sampler) {
  if (form.rows > 0 && (options.shuffle || has_sampler || options.batch_size != form.rows)) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the rows of a SequenceDataset go on from batch to batch, in order; got batch_size = "
            "{}, shuffle = {}, {} sampler, expected batch_size = {} and neither; try "
            "sequence_loader()",
            options.batch_size,
            options.shuffle,
            has_sampler ? "a" : "no",
            form.rows));
  }
}

LoaderOptions checked(const SourceInfo& source, const LoaderOptions& options, bool has_sampler) {
  check_sequences(source.sequences, options, has_sampler);
  check_range("batch_size", options.batch_size, 1, int64_t{1} << 40);
  check_range("workers", options.workers, 0, kMaxWorkers);
  check_range("prefetch_batches", options.prefetch_batches, 0, kMaxPrefetchBatches);
  check_device(source, options.device);
  if (source.streamed && options.workers > 1) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "an iterable dataset is read by one thread; got workers = {}, expected 0 or 1",
            options.workers));
  }
  return options;
}

int64_t require_samples(const SourceInfo& source, const Sampler* sampler) {
  if (source.streamed) {
    return source.samples.value_or(0);
  }
  if (*source.samples < 1 || sampler->size() < 1) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the dataset is empty; got {} samples and a sampler of {}, expected at least one each",
            *source.samples,
            sampler->size()));
  }
  return sampler->size();
}

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

std::shared_ptr<const Sampler> require_sampler(std::shared_ptr<const Sampler> sampler) {
  if (!sampler) {
    throw ConfigError(
        "Loader", "the sampler is null; leave it out for the one the options ask for");
  }
  return sampler;
}

LoaderCore::LoaderCore(
    const SourceInfo& source, const LoaderOptions& options, std::shared_ptr<const Sampler> sampler)
    : source_(source),
      options_(checked(source, options, sampler != nullptr)),
      sampler_(choose_sampler(source, options, std::move(sampler))),
      layout_(
          require_samples(source, sampler_.get()),
          options.batch_size,
          options.drop_last,
          ShardSpec{}),
      cursor_{.seed = order_seed()} {
  register_sample_random();  // Now, where few other threads use torch.
}

RandomKey LoaderCore::random_key() const {
  return {.seed = options_.seed, .sampler_seed = sampler_ ? sampler_->seed() : 0, .epoch = epoch()};
}

uint64_t LoaderCore::order_seed() const {
  if (source_.sequences.rows > 0) {
    return static_cast<uint64_t>(source_.sequences.length);
  }
  return sampler_ ? sampler_->seed() : 0;
}

int64_t LoaderCore::max_batches(const ShardLayout& layout) const {
  // No rank has more than rank 0. What a stream's size() says is no more than a hint.
  return source_.streamed ? (kMaxStreamSamples - layout.first_sample()) / layout.global_batch_rows()
                          : layout.size(0);
}

void LoaderCore::shard(const ShardSpec& asked, Group group) {
  refuse_during_pass(running_, "shard()");
  ShardSpec spec = asked;
  if (const int64_t rows = source_.sequences.rows; rows > 0) {
    spec.split_batches = true;
    if (spec.world > 0 && rows % spec.world != 0) {
      throw ConfigError(
          "sequence_loader",
          fmt::format(
              "the rows cannot be shared equally by the ranks; got {} rows for {} ranks, expected "
              "a multiple of {}",
              rows,
              spec.world,
              spec.world));
    }
  }
  if (sharded_) {
    if (spec == shard_) {
      return;
    }
    const auto text = [](const ShardSpec& of) {
      return fmt::format(
          "rank {} of {} (even_batches {}, split_batches {}, dispatch_batches {})",
          of.rank,
          of.world,
          of.even_batches,
          of.split_batches,
          of.dispatch_batches);
    };
    throw ConfigError(
        "Loader",
        fmt::format(
            "sharded twice in different ways; was {}, got {}; prepare a loader once, or make "
            "another",
            text(shard_),
            text(spec)));
  }
  const ShardLayout layout(layout_.samples(), options_.batch_size, options_.drop_last, spec);
  check_position(cursor_, layout);
  if (spec.dispatch_batches && spec.world > 1) {
    if (group.rank() != spec.rank || group.size() != spec.world) {
      throw ConfigError(
          "Loader",
          fmt::format(
              "dispatch_batches needs the ranks' group; got one with rank {} of {}, expected rank "
              "{} "
              "of {}; try shard(spec, group)",
              group.rank(),
              group.size(),
              spec.rank,
              spec.world));
    }
    if (!source_.transferable) {
      throw ConfigError(
          "Loader",
          "dispatch_batches cannot send batches of this type: something in them is neither tensor, "
          "number nor string in a standard container; declare the fields of its structs with "
          "LOCKSTEP_FIELDS, or let every rank read for itself");
    }
    // A group of its own: batches travel while the training's own operations do.
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
            "the cursor goes on outside the data; got first_sample {}, expected 0 to {}; was it "
            "saved with another dataset?",
            cursor.first_sample,
            max_sample));
  }
  const int64_t max = max_batches(layout.with_first_sample(cursor.first_sample));
  if (cursor.epoch < 0 || cursor.batches < 0 || cursor.batches > max) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the cursor points outside the data; got epoch {}, batch {}, expected an epoch from 0 "
            "and a batch from 0 "
            "to {}; was it saved with another dataset, batch_size or number of ranks?",
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
            "the position was saved with another length; got {} time steps a batch, expected this "
            "loader's {}; make the loader with .length = {} to go on where it was saved",
            cursor.seed,
            seed,
            cursor.seed));
  }
  if (cursor.seed != seed) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the cursor belongs to another order of the data; got seed {}, expected this loader's "
            "seed {}; "
            "make the loader with .seed = {} to go on where it was saved",
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
            "the position was saved with another number of rows, which cut the corpus at other "
            "places; got {} rows, expected this loader's {}; make the loader with .rows = {} to go "
            "on where it was saved",
            saved_global_batch_rows,
            rows,
            saved_global_batch_rows));
  }
}

Cursor LoaderCore::resharded(const Cursor& saved, int64_t saved_global_batch_rows) const {
  check_rows(saved_global_batch_rows);
  // One rank that takes whole rounds is where all of the ranks together were.
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
        sharded_ ? "dispatched batches are even or not from the start; shard it so"
                 : "set_even_batches() before shard(); prepare the loader first");
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
  check_device(source_, device);
  options_.device = device;
}

void LoaderCore::set_observer(std::shared_ptr<LoaderObserver> observer) {
  observer_ = std::move(observer);
}

void LoaderCore::check_skip(int64_t batches) const {
  // Where another layout was left, the count belongs to that one and moves nothing.
  const int64_t max = layout().first_sample() > 0 ? kMaxStreamSamples : max_batches(layout_);
  if (batches < 0 || batches > max) {
    throw ConfigError(
        "skip_first_batches",
        fmt::format("cannot skip that many batches; got {}, expected 0 to {}", batches, max));
  }
}

std::shared_ptr<const ShardPlan> LoaderCore::make_plan(const Cursor& start) const {
  if (!sampler_) {
    return nullptr;
  }
  std::vector<int64_t> order = sampler_->order(start.epoch);
  for (const int64_t index : order) {
    if (index < 0 || index >= *source_.samples) {
      throw ConfigError(
          "Loader",
          fmt::format(
              "the sampler's order for epoch {} leaves the dataset; got index {}, expected 0 to {}",
              start.epoch,
              index,
              *source_.samples - 1));
    }
  }
  auto plan = std::make_shared<const ShardPlan>(
      std::move(order), layout_.with_first_sample(start.first_sample));
  // Only now: what is wrong with an order is to be seen by all ranks.
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
    // This rank may have one batch less. Where rank 0 reads for all, they stay at one step.
    start.batches = std::min(start.batches, layout().size());
  }
  auto plan = make_plan(start);
  if (options_.drop_last && source_.samples && layout_.size() == 0) {
    log_warning(fmt::format(
        "this pass has no batches: drop_last with {} samples, fewer than the {} of one full round",
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
  const int64_t index = cursor_.batches++;
  if (!pass_observer_) {
    return;
  }
  BatchInfo info;
  info.index = index;
  info.is_last = layout.is_last(index);
  for (int rank = 0; rank < layout.spec().world; ++rank) {
    info.is_last_somewhere |= layout.size(rank) - 1 == index;
    info.rows_per_rank.push_back(layout.rows(index, rank));
    info.valid_rows.push_back(layout.valid_rows(index, rank));
  }
  info.rows = info.rows_per_rank[static_cast<size_t>(layout.spec().rank)];
  pass_observer_->batch_started(this, info);
}

void LoaderCore::end_batch() {
  if (pass_observer_) {
    pass_observer_->batch_ended(this);
  }
}

void LoaderCore::finish_pass() {
  cursor_ = next_epoch(cursor_);
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

void refuse_empty_loader() {
  throw ConfigError(
      "loader",
      "this loader is empty: free_memory() has released its dataset; construct another Loader");
}

}  // namespace lockstep::data
