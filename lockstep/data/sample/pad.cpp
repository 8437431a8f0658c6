// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/pad.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/data/sample/describe.h"

namespace lockstep::data {
namespace {

void check(const std::vector<at::Tensor>& sequences, const PadOptions& options) {
  if (sequences.empty()) {
    throw ConfigError("pad_sequences", "there is no sequence; expected at least one");
  }
  if (options.multiple_of < 1) {
    throw ConfigError(
        "pad_sequences",
        fmt::format(
            "multiple_of is out of range; got {}, expected 1 or more", options.multiple_of));
  }
  const at::Tensor& first = sequences.front();
  for (const at::Tensor& sequence : sequences) {
    const bool fits = sequence.defined() && sequence.dim() > 0 && first.defined() &&
                      sequence.scalar_type() == first.scalar_type() &&
                      sequence.device() == first.device() &&
                      sequence.sizes().slice(1) == first.sizes().slice(1);
    if (!fits) {
      throw ConfigError(
          "pad_sequences",
          fmt::format(
              "sequences may differ in dimension 0 only; got {} and {}",
              describe(first),
              describe(sequence)));
    }
  }
}

}  // namespace

PaddedBatch pad_sequences(const std::vector<at::Tensor>& sequences, const PadOptions& options) {
  check(sequences, options);
  const at::Tensor& first = sequences.front();
  const auto count = static_cast<int64_t>(sequences.size());
  int64_t longest = 0;
  for (const at::Tensor& sequence : sequences) {
    longest = std::max(longest, sequence.size(0));
  }
  longest = (longest + options.multiple_of - 1) / options.multiple_of * options.multiple_of;

  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[0] = longest;
  sizes.insert(sizes.begin(), count);
  PaddedBatch batch{
      .values = at::full(sizes, options.value, first.options().requires_grad(false)),
      .lengths = at::empty({count}, at::kLong),
      .mask = at::zeros({count, longest}, at::kBool)};
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& sequence = sequences[static_cast<size_t>(i)];
    const int64_t length = sequence.size(0);
    const int64_t begin = options.left ? longest - length : 0;
    batch.values.select(0, i).narrow(0, begin, length).copy_(sequence);
    batch.mask.select(0, i).narrow(0, begin, length).fill_(true);
    batch.lengths.mutable_data_ptr<int64_t>()[i] = length;
  }
  batch.lengths = batch.lengths.to(first.device());
  batch.mask = batch.mask.to(first.device());
  return batch;
}

}  // namespace lockstep::data
