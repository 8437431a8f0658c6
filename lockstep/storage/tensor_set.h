// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/storage/manifest.h"
#include "lockstep/storage/stored_checkpoint.h"

namespace lockstep::storage {

/// Consecutive elements of a flattened tensor, with their location.
struct TensorSlice {
  size_t file = 0;    ///< Index of the set's file.
  size_t entry = 0;   ///< Index into that file's entries().
  int64_t begin = 0;  ///< First element of the tensor, flattened row by row.
  int64_t count = 0;  ///< Elements.
};

/// A tensor that consists of slices.
struct SetTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  /// Ordered slices; each element is in exactly one. An unsliced tensor has one slice, a tensor
  /// without elements has none.
  std::vector<TensorSlice> slices;
  int64_t elements() const {
    return slices.empty() ? 0 : slices.back().begin + slices.back().count;
  }
};

/// Named tensors, each in full or in slices, in one or several files of a checkpoint. The files are
/// `<stem>.safetensors`, or `<stem>-00001-of-00002.safetensors` and so on, as ranks save sharded
/// state. A file's metadata says which entries are slices, see slices.h.
///
/// Opening verifies headers without reading data, so each reader reads only its part. The files
/// stay mapped while this, or the memory() of one of them, lives.
///
/// Thread safety: immutable for callers.
class TensorSet {
 public:
  /// Throws CheckpointError, naming the file and if possible the tensor, for a missing file or
  /// part, parts with different counts, a damaged header, and invalid slices metadata. Throws
  /// CheckpointError also for a tensor with gaps or overlaps between its slices, or with slices of
  /// different shape or dtype.
  TensorSet(const StoredCheckpoint& checkpoint, const std::string& stem);

  /// Returns whether any file has that stem.
  static bool exists(const StoredCheckpoint& checkpoint, const std::string& stem);

  /// Returns the stems of all files that could belong to a set, sorted.
  static std::vector<std::string> stems(const StoredCheckpoint& checkpoint);

  /// Returns the tensors, sorted by name.
  const std::vector<SetTensor>& tensors() const { return tensors_; }
  bool has(const std::string& name) const;
  /// Throws CheckpointError for an unknown name.
  const SetTensor& tensor(const std::string& name) const;

  /// Returns the names of the files, in the order of their numbers.
  std::vector<std::string> files() const;
  const SafetensorsMap& file(size_t index) const { return parts_[index].map; }
  /// Returns the bytes of a slice. The first call compares the checksum of its entry, and throws
  /// CheckpointError, naming the tensor, if it is damaged.
  std::string_view bytes(const TensorSlice& slice) const;
  /// Returns the expected checksum of a slice's bytes.
  uint32_t crc32c(const TensorSlice& slice) const;

 private:
  struct Part {
    FileRecord record;
    SafetensorsMap map;
    std::unique_ptr<std::atomic<bool>[]> verified;  ///< For each entry.
  };

  /// Null if there is none.
  const SetTensor* find(const std::string& name) const;
  /// Sorts the slices and drops empty ones; throws unless they form the tensor.
  void check_cover(SetTensor& tensor) const;

  std::string path_;  ///< For messages about the complete set.
  std::vector<Part> parts_;
  std::vector<SetTensor> tensors_;
};

}  // namespace lockstep::storage
