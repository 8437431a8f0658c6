// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/data/sample/nested.h"

namespace lockstep::data {

template <typename D>
class Loader;

/// One batch of a rank's rows.
struct SequenceBatch {
  /// [rows of this rank, time steps, ...] of the corpus's dtype.
  at::Tensor data;
  /// The same, one time step later.
  at::Tensor target;
  /// The first time step of the batch. At 0 a pass begins, and the model's state must be reset.
  int64_t position = 0;
  LOCKSTEP_FIELDS(data, target, position)
};

/// Splits a corpus into rows that continue from batch to batch, for truncated backpropagation
/// through time. Row i of each batch follows row i of the batch before.
///
/// The corpus, [time steps, ...], is split into `rows` equal parts; a remainder at its end is not
/// used. Batch k has the time steps k * length to (k + 1) * length of every part; the last batch of
/// a pass may be shorter. Sample k * rows + i is row i of batch k. Modelled on torch's
/// word_language_model (batchify and get_batch).
///
/// Thread-safe; the corpus must not change while a loader reads it.
class SequenceDataset {
 public:
  using Batch = SequenceBatch;

  /// Throws ConfigError if `rows` or `length` is less than 1, for a corpus with less than two time
  /// steps per row, and for one that gather_rows cannot read.
  SequenceDataset(const at::Tensor& corpus, int64_t rows, int64_t length);

  int64_t size() const { return rows_ * batches_; }
  /// Returns a part of one batch. Throws ConfigError unless all samples are of that batch.
  Batch get_batch(std::span<const int64_t> indices) const;
  int64_t rows() const { return rows_; }
  int64_t length() const { return length_; }
  /// Time steps of each row in a pass.
  int64_t time_steps() const { return time_steps_; }

 private:
  at::Tensor corpus_;
  int64_t rows_;
  int64_t length_;
  int64_t time_steps_;
  int64_t batches_;
};

/// Options of sequence_loader.
struct SequenceOptions {
  int64_t rows = 1;     ///< Rows of all ranks together; each rank has rows / ranks of them.
  int64_t length = 35;  ///< Time steps of a batch.
  int workers = 1;      ///< As in LoaderOptions.
  int prefetch_batches = 2;
  std::optional<at::Device> device = std::nullopt;
};

/// Makes a loader that gives each rank the same rows in every batch. Rank r of n has the rows from
/// r * rows / n on, regardless of the Accelerator's split_batches.
///
///   auto loader = accelerator.prepare(data::sequence_loader(tokens, {.rows = 32, .length = 35}));
///
/// Its position is part of a checkpoint. A job with any number of ranks that divides `rows` resumes
/// at the same time step with the same rows; SequenceState restores the model's state. Throws
/// ConfigError for another number of rows or length, which would split the corpus differently.
Loader<SequenceDataset> sequence_loader(const at::Tensor& corpus, const SequenceOptions& options);

}  // namespace lockstep::data
