// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

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
};

}  // namespace lockstep::checkpoint
