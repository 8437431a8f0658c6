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
  /// The time step of the rows at which the batch begins. At 0 a pass begins: the model's state
  /// must be reset.
  int64_t position = 0;
  LOCKSTEP_FIELDS(data, target, position)
};

/// A corpus cut into rows that go on from batch to batch, for truncated backpropagation through
/// time: row i of each batch follows row i of the batch before.
///
/// The corpus, [time steps, ...], is cut into `rows` equal parts; what is left at its end is not
/// used. Batch k has the time steps k * length to (k + 1) * length of every part; the last batch of
/// a pass may be shorter. Sample k * rows + i is row i of batch k. After torch's
/// word_language_model (batchify and get_batch).
///
/// Thread-safe; the corpus must not change while a loader reads it.
class SequenceDataset {
 public:
  using Batch = SequenceBatch;

  /// ConfigError if `rows` or `length` is below 1, for a corpus with less than two time steps a
  /// row, and for one that gather_rows cannot read.
  SequenceDataset(const at::Tensor& corpus, int64_t rows, int64_t length);

  int64_t size() const { return rows_ * batches_; }
  /// ConfigError unless all samples are of one batch.
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

struct SequenceOptions {
  int64_t rows = 1;     ///< Of all ranks together: each has rows / ranks of them.
  int64_t length = 35;  ///< Time steps of a batch.
  int workers = 1;      ///< As in LoaderOptions.
  int prefetch_batches = 2;
  std::optional<at::Device> device = std::nullopt;
};

/// Makes a loader that hands every rank the same rows in each batch: rank r of n has the rows from
/// r * rows / n on, whatever the Accelerator's split_batches says.
///
///   auto loader = accelerator.prepare(data::sequence_loader(tokens, {.rows = 32, .length = 35}));
///
/// Its position is part of a checkpoint, as any loader's. Any number of ranks that divides `rows`
/// goes on at the same time step with the same rows; SequenceState carries the model's state there.
/// Another number of rows or another length is refused (ConfigError): it would cut the corpus at
/// other places.
Loader<SequenceDataset> sequence_loader(const at::Tensor& corpus, const SequenceOptions& options);

}  // namespace lockstep::data
