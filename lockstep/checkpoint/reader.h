// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

/// The part of a verification that one of `count` processes does. The processes are on one host and
/// share a page cache, so all of them read the bytes that one has verified. They must exchange
/// their results before they use the data.
struct VerificationShare {
  int index = 0;
  int count = 1;
  bool unverified = false;  ///< Compares no checksum; only read errors are found.
};

/// A StoredCheckpoint that reads its tensors.
///
/// Thread safety: immutable.
class Reader : public storage::StoredCheckpoint {
 public:
  using storage::StoredCheckpoint::StoredCheckpoint;

  /// Returns all tensors of a file, in the order of its data: views of the mapped file, see
  /// tensor_of. Throws CheckpointError, naming the tensor if possible, for damaged content, and for
  /// a missing file.
  NamedTensors tensors(const std::string& file_name) const;
  /// Returns all tensors of a TensorSet, by name: views of contiguous ones, others assembled from
  /// their slices. Reads and verifies them, or the `share` of their bytes, with `threads` threads
  /// and read-ahead.
  NamedTensors tensor_set(
      const std::string& stem, int threads = 1, const VerificationShare& share = {}) const;
};

}  // namespace lockstep::checkpoint
