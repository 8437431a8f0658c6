// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/rules/batch_sizes.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/text/words.h"

namespace lockstep::ds_config {
namespace {

Resolved<int64_t> derived(int64_t value, std::string from) {
  return {value, {Origin::Kind::kDerived, std::move(from)}};
}

Resolved<int64_t> as_given(const Resolved<std::optional<int64_t>>& given) {
  return {given.value.value_or(0), given.origin};
}

/// Returns the product; nothing if it exceeds int64.
std::optional<int64_t> product(int64_t a, int64_t b, int64_t c) {
  int64_t ab = 0;
  int64_t abc = 0;
  const bool too_large = __builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc);
  return too_large ? std::nullopt : std::optional(abc);
}

/// Returns "try train_batch_size 8 or 12", the nearest multiples of `unit`.
std::string advice(int64_t train, int64_t unit, bool exact) {
  const int64_t below = train / unit * unit;
  const auto above = product(train / unit + 1, unit, 1);
  if (exact || below == 0) {
    return fmt::format("try train_batch_size {}", unit);
  }
  return above ? fmt::format("try train_batch_size {} or {}", below, *above)
               : fmt::format("try train_batch_size {}", below);
}

}  // namespace

ResolvedBatchSizes resolve_batch_sizes(const GivenBatchSizes& given, int64_t world_size) {
  const auto& train = given.train_batch_size.value;
  const auto& micro = given.train_micro_batch_size_per_gpu.value;
  const auto& steps = given.gradient_accumulation_steps.value;
  const std::string world = counted(static_cast<size_t>(world_size), "rank");
  BatchSizes sizes{
      as_given(given.train_batch_size),
      as_given(given.train_micro_batch_size_per_gpu),
      as_given(given.gradient_accumulation_steps)};
  if (!train && !micro) {
    return {
        sizes,
        "neither train_batch_size nor train_micro_batch_size_per_gpu is given; expected at least "
        "one of them, as a number: \"auto\" needs Accelerate or the Trainer"};
  }
  if (train && micro && !steps) {
    sizes.gradient_accumulation_steps = derived(
        *train / *micro / world_size,
        fmt::format("train_batch_size / train_micro_batch_size_per_gpu / {}", world));
  } else if (!steps) {
    sizes.gradient_accumulation_steps = {1, given.gradient_accumulation_steps.origin};
  }
  if (!micro) {
    sizes.train_micro_batch_size_per_gpu = derived(
        *train / world_size / sizes.gradient_accumulation_steps.value,
        fmt::format("train_batch_size / {} / gradient_accumulation_steps", world));
  }
  const int64_t each = std::max<int64_t>(1, sizes.train_micro_batch_size_per_gpu.value);
  const int64_t count = std::max<int64_t>(1, sizes.gradient_accumulation_steps.value);
  const auto batch = product(each, count, world_size);
  if (!batch) {
    return {sizes, "the batch of all ranks exceeds 64 bits; try smaller sizes"};
  }
  if (!train) {
    sizes.train_batch_size = derived(
        *batch,
        fmt::format("train_micro_batch_size_per_gpu * gradient_accumulation_steps * {}", world));
    return {sizes, ""};
  }
  if (*batch == *train) {
    return {sizes, ""};
  }
  // train_batch_size must be a multiple of this.
  const auto unit = product(micro.value_or(1), steps.value_or(1), world_size);
  return {
      sizes,
      fmt::format(
          "batch sizes do not match; got train_batch_size {}, expected "
          "train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks{} = {} * {} * {}; "
          "{}",
          *train,
          micro && steps ? "" : ", in whole numbers",
          micro ? std::to_string(*micro) : "N",
          steps    ? std::to_string(*steps)
          : !micro ? "1"
                   : "N",
          world_size,
          advice(*train, unit.value_or(*batch), micro && steps))};
}

}  // namespace lockstep::ds_config
