// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::checkpoint {

/// Consecutive elements of a flattened tensor, and where they lie.
struct TensorSlice {
  size_t file = 0;    ///< Index of the set's file.
  size_t entry = 0;   ///< Index into that file's entries().
  int64_t begin = 0;  ///< First element of the tensor, flattened row by row.
  int64_t count = 0;  ///< Elements.
};

/// A tensor put together from its pieces.
struct SetTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  /// Each element in exactly one of them, in order. A tensor in one piece is `pieces.size() == 1`;
  /// one without elements has none.
  std::vector<TensorSlice> pieces;
  int64_t elements() const {
    return pieces.empty() ? 0 : pieces.back().begin + pieces.back().count;
  }
};

/// Named tensors that lie, whole or in slices, in one or several files of a checkpoint: in
/// `<stem>.safetensors`, or in `<stem>-00001-of-00002.safetensors` and so on, the way ranks save
/// what is divided among them. Which entries are slices is told by a file's metadata, see slices.h.
///
/// Opening proves headers without reading data: a reader that asks for its part touches no other.
/// The files stay mapped as long as this, or the memory() of one of them, lives.
///
/// Thread safety: immutable, as seen from outside.
class TensorSet {
 public:
  /// CheckpointError, naming the file and where it can the tensor: no such file, a missing part,
  /// parts of different counts, a damaged header, bad slices metadata; a tensor with a hole or an
  /// overlap between its slices, or with slices of different shape or dtype.
  TensorSet(const StoredCheckpoint& checkpoint, const std::string& stem);

  /// True if there is any file of that stem.
  static bool exists(const StoredCheckpoint& checkpoint, const std::string& stem);

  /// The stems of all files that could be a set's, sorted.
  static std::vector<std::string> stems(const StoredCheckpoint& checkpoint);

  /// Sorted by name.
  const std::vector<SetTensor>& tensors() const { return tensors_; }
  bool has(const std::string& name) const;
  /// CheckpointError if there is none of that name.
  const SetTensor& tensor(const std::string& name) const;

  /// In the order of their numbers.
  std::vector<std::string> files() const;
  const SafetensorsMap& file(size_t index) const { return parts_[index].map; }
  /// What a piece consists of. Its checksum, that of the whole entry, is compared the first time it
  /// is asked for: CheckpointError, naming the tensor, if it is damaged.
  std::string_view bytes(const TensorSlice& piece) const;
  /// The checksum that its bytes should have.
  uint32_t crc32c(const TensorSlice& piece) const;

 private:
  struct Part {
    FileRecord record;
    SafetensorsMap map;
    std::unique_ptr<std::atomic<bool>[]> proven;  ///< For each entry.
  };

  /// Null if there is none.
  const SetTensor* find(const std::string& name) const;
  /// Brings the pieces into order and drops empty ones; throws unless they are the tensor.
  void check_cover(SetTensor& tensor) const;

  std::string path_;  ///< For messages about the set as a whole.
  std::vector<Part> parts_;
  std::vector<SetTensor> tensors_;
};

}  // namespace lockstep::checkpoint
