// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/sequence_dataset.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/rows.h"

namespace lockstep::data {
namespace {

int64_t require_positive(const char* name, int64_t value) {
  if (value < 1) {
    throw ConfigError(
        "SequenceDataset",
        fmt::format("{} is out of range; got {}, expected 1 or more", name, value));
  }
  return value;
}

/// Of one row; each needs a target beyond its end.
int64_t time_steps_of(const at::Tensor& corpus, int64_t rows) {
  const int64_t steps = (corpus.size(0) - 1) / rows;
  if (steps < 1) {
    throw ConfigError(
        "SequenceDataset",
        fmt::format(
            "the corpus is too short; got {} time steps for {} rows, expected at least {}",
            corpus.size(0),
            rows,
            rows + 1));
  }
  return steps;
}

at::Tensor in_rows(const at::Tensor& values, size_t rows) {
  std::vector<int64_t> shape = values.sizes().vec();
  shape[0] /= static_cast<int64_t>(std::max<size_t>(rows, 1));
  shape.insert(shape.begin(), static_cast<int64_t>(rows));
  return values.view(shape);
}

}  // namespace

SequenceDataset::SequenceDataset(const at::Tensor& corpus, int64_t rows, int64_t length)
    : corpus_(corpus.detach()),
      rows_(require_positive("rows", rows)),
      length_(require_positive("length", length)),
      time_steps_((require_rows("SequenceDataset", corpus_), time_steps_of(corpus_, rows_))),
      batches_((time_steps_ + length_ - 1) / length_) {}

SequenceBatch SequenceDataset::get_batch(std::span<const int64_t> indices) const {
  require_indices("SequenceDataset", indices, size());
  const int64_t batch = indices.empty() ? 0 : indices.front() / rows_;
  const int64_t begin = batch * length_;
  const int64_t end = std::min(begin + length_, time_steps_);
  std::vector<int64_t> steps;
  for (const int64_t index : indices) {
    if (index / rows_ != batch) {
      throw ConfigError(
          "SequenceDataset",
          fmt::format(
              "the samples are of different batches; got {} and {} with {} rows; load it with "
              "sequence_loader()",
              indices.front(),
              index,
              rows_));
    }
    for (int64_t step = begin; step < end; ++step) {
      steps.push_back(index % rows_ * time_steps_ + step);
    }
  }
  const at::Tensor data = gather_rows(corpus_, steps);
  for (int64_t& step : steps) {
    ++step;
  }
  return {
      .data = in_rows(data, indices.size()),
      .target = in_rows(gather_rows(corpus_, steps), indices.size()),
      .position = begin};
}

Loader<SequenceDataset> sequence_loader(const at::Tensor& corpus, const SequenceOptions& options) {
  return Loader(
      SequenceDataset(corpus, options.rows, options.length),
      {.batch_size = options.rows,
       .workers = options.workers,
       .prefetch_batches = options.prefetch_batches,
       .device = options.device});
}

}  // namespace lockstep::data
