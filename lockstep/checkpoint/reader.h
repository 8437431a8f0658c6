// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

/// The part of a proof that falls to one of `of` processes, which must hear of one another whether
/// it went well before any of them uses what it got. They share a page cache, being on one host: so
/// what one of them has proven is what all of them read.
struct ProofShare {
  int index = 0;
  int of = 1;
  bool nothing = false;  ///< Nobody proves anything; only what cannot be read is noticed.
};

/// A StoredCheckpoint whose files of tensors are handed out as such.
///
/// Thread safety: immutable.
class Reader : public StoredCheckpoint {
 public:
  using StoredCheckpoint::StoredCheckpoint;

  /// All tensors of a file, in the order of its data. They are views of the mapped file, see
  /// tensor_of. CheckpointError, naming the tensor where one is to blame, if the content is not
  /// what was written, and if there is no such file.
  NamedTensors tensors(const std::string& file_name) const;
  /// All tensors of a TensorSet, by name: views where one lies in one piece, else put together from
  /// its slices. Reads and proves them, or the `share` of their bytes, with `threads` threads,
  /// while the disk fetches what comes next.
  NamedTensors tensor_set(
      const std::string& stem, int threads = 1, const ProofShare& share = {}) const;
};

}  // namespace lockstep::checkpoint
