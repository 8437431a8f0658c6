// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/loader_checks.h"

#include <utility>

#include <fmt/format.h>

#include <ATen/Context.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr int kMaxWorkers = 1024;
constexpr int kMaxPrefetchBatches = 1 << 20;

void check_range(const char* option, int64_t value, int64_t min, int64_t max) {
  if (value < min || value > max) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "option {} is out of range; got {}, expected {} to {}", option, value, min, max));
  }
}

void check_sequences(const SequenceForm& form, const LoaderOptions& options, bool has_sampler) {
  if (form.rows > 0 && (options.shuffle || has_sampler || options.batch_size != form.rows)) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "a SequenceDataset must be read in its own order; got batch_size = {}, shuffle = {}, "
            "{} sampler, expected batch_size = {}, no shuffle, no sampler; try sequence_loader()",
            options.batch_size,
            options.shuffle,
            has_sampler ? "a" : "no",
            form.rows));
  }
}

}  // namespace

void check_loader_device(const SourceInfo& source, const std::optional<at::Device>& device) {
  if (device && !device->is_cpu() && !source.transferable) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "batches of this type cannot be moved to {}: they contain more than tensors, numbers "
            "and strings in standard containers; declare the fields of structs with "
            "LOCKSTEP_FIELDS",
            device->str()));
  }
  if (device && device->is_cuda() && !at::hasCUDA()) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "batches cannot be moved to {}: this process has no CUDA device; omit option device, "
            "or try cpu",
            device->str()));
  }
}

LoaderOptions checked_options(
    const SourceInfo& source, const LoaderOptions& options, bool has_sampler) {
  check_sequences(source.sequences, options, has_sampler);
  check_range("batch_size", options.batch_size, 1, int64_t{1} << 40);
  check_range("workers", options.workers, 0, kMaxWorkers);
  check_range("prefetch_batches", options.prefetch_batches, 0, kMaxPrefetchBatches);
  check_loader_device(source, options.device);
  if (source.streamed && options.workers > 1) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "an iterable dataset is read by one thread; got workers = {}, expected 0 or 1",
            options.workers));
  }
  return options;
}

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
        "an iterable dataset decides its own order",
        "omit the option, and shuffle in stream(epoch)");
    return nullptr;
  }
  if (sampler) {
    refuse_shuffle(
        "shuffle has no effect beside a sampler, which decides the order", "omit the option");
    return sampler;
  }
  if (options.shuffle) {
    return std::make_shared<RandomSampler>(*source.samples, options.seed);
  }
  return std::make_shared<SequentialSampler>(*source.samples);
}

std::shared_ptr<const Sampler> require_sampler(std::shared_ptr<const Sampler> sampler) {
  if (!sampler) {
    throw ConfigError(
        "Loader", "the sampler is null; omit the argument to use the order of the options");
  }
  return sampler;
}

int64_t require_samples(const SourceInfo& source, const Sampler* sampler) {
  if (source.streamed) {
    return source.samples.value_or(0);
  }
  if (*source.samples < 1 || sampler->size() < 1) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "the dataset is empty; got {} samples and a sampler of {}, expected at least 1 each",
            *source.samples,
            sampler->size()));
  }
  return sampler->size();
}

void check_rows_divide(int64_t rows, int world) {
  if (world > 0 && rows % world != 0) {
    throw ConfigError(
        "sequence_loader",
        fmt::format(
            "the rows do not divide equally among the ranks; got {} rows for {} ranks, expected "
            "a multiple of {}",
            rows,
            world,
            world));
  }
}

void refuse_other_shard(const ShardSpec& before, const ShardSpec& spec) {
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
          "the loader was already sharded differently; was {}, got {}; prepare a loader once, or "
          "make another loader",
          text(before),
          text(spec)));
}

void check_dispatch(const ShardSpec& spec, const Group& group, bool transferable) {
  if (group.rank() != spec.rank || group.size() != spec.world) {
    throw ConfigError(
        "Loader",
        fmt::format(
            "dispatch_batches needs the group of all ranks; got rank {} of {}, expected rank {} "
            "of {}; try shard(spec, group)",
            group.rank(),
            group.size(),
            spec.rank,
            spec.world));
  }
  if (!transferable) {
    throw ConfigError(
        "Loader",
        "dispatch_batches cannot send batches of this type: they contain more than tensors, "
        "numbers and strings in standard containers; declare the fields of structs with "
        "LOCKSTEP_FIELDS, or turn dispatch_batches off");
  }
}

}  // namespace lockstep::data
