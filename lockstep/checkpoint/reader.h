// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

/// The part of a verification that one of `of` processes does. The processes must exchange their
/// results before they use the data. They are on one host and share a page cache: data that one has
/// verified is what all of them read.
struct ProofShare {
  int index = 0;
  int of = 1;
  bool nothing = false;  ///< Nothing is verified; only unreadable files are noticed.
};

/// A StoredCheckpoint that reads its tensors.
///
/// Thread safety: immutable.
class Reader : public storage::StoredCheckpoint {
 public:
  using storage::StoredCheckpoint::StoredCheckpoint;

  /// Returns all tensors of a file, in the order of its data: views of the mapped file, see
  /// tensor_of. CheckpointError, naming the tensor if possible, for damaged content, and for a
  /// missing file.
  NamedTensors tensors(const std::string& file_name) const;
  /// Returns all tensors of a TensorSet, by name: views of contiguous ones, others assembled from
  /// their slices. Reads and verifies them, or the `share` of their bytes, with `threads` threads
  /// and read-ahead.
  NamedTensors tensor_set(
      const std::string& stem, int threads = 1, const ProofShare& share = {}) const;
};

}  // namespace lockstep::checkpoint
