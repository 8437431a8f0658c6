// SPDX-License-Identifier: Apache-2.0
#include "lockstep/context_parallel/attention_arguments.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"

namespace lockstep::context_parallel {
namespace {

std::string shapes_text(const AttentionTensors& it) {
  const auto text = [](const at::Tensor& tensor) {
    return fmt::format(
        "{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
  };
  return fmt::format("query {}, key {}, value {}", text(it.query), text(it.key), text(it.value));
}

void expect_equal_kinds(const char* where, const AttentionTensors& it) {
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.is_floating_point() && tensor.scalar_type() == it.query.scalar_type() &&
           tensor.device() == it.query.device() && tensor.dim() == it.query.dim() &&
           (tensor.dim() == 3 || tensor.dim() == 4) && tensor.size(0) == it.query.size(0);
  };
  if (!fits(it.query) || !fits(it.key) || !fits(it.value)) {
    throw ConfigError(
        where,
        fmt::format(
            "query, key and value do not fit together; got {}, expected floating point tensors of "
            "one dtype and device, all (batch, heads, positions, features) or (batch, positions, "
            "features), of one batch size",
            shapes_text(it)));
  }
}

void expect_lengths(const char* where, const AttentionTensors& it, const SequenceShard& shard) {
  const int64_t expected = shard.local_length();
  if (it.query.size(-2) != expected || it.key.size(-2) != expected ||
      it.value.size(-2) != expected) {
    throw ConfigError(
        where,
        fmt::format(
            "query, key and value must each have this rank's part of the sequence, {} of {} "
            "positions; got {}; pass parts of SequenceShard::shard_sequence. If keys and values "
            "are not sharded, as in cross attention to an encoder's full output, run this "
            "attention within a LocalAttentionScope, without is_causal",
            expected,
            shard.length(),
            shapes_text(it)));
  }
}

void expect_heads(const char* where, const AttentionTensors& it, bool enable_gqa) {
  const int64_t heads = it.query.size(1);
  const int64_t key_heads = it.key.size(1);
  const bool divides = enable_gqa && key_heads > 0 && heads % key_heads == 0;
  if (key_heads != it.value.size(1) || (heads != key_heads && !divides)) {
    throw ConfigError(
        where,
        fmt::format(
            "the numbers of heads do not fit; got {}, expected equal numbers, or with enable_gqa a "
            "number of key heads that divides that of query heads",
            shapes_text(it)));
  }
  if (it.query.size(3) != it.key.size(3)) {
    throw ConfigError(
        where,
        fmt::format(
            "query and key must have the same number of features; got {}", shapes_text(it)));
  }
}

}  // namespace

AttentionTensors checked_attention_tensors(
    const char* where,
    const AttentionTensors& given,
    const SequenceShard& shard,
    const AttentionOptions& options) {
  expect_equal_kinds(where, given);
  expect_lengths(where, given, shard);
  AttentionTensors it = given;
  if (given.query.dim() == 3) {
    it = {given.query.unsqueeze(0), given.key.unsqueeze(0), given.value.unsqueeze(0)};
  }
  expect_heads(where, it, options.enable_gqa);
  return it;
}

}  // namespace lockstep::context_parallel
