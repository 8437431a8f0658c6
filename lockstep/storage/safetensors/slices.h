// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::storage {

/// The metadata key of a safetensors file for the text of render_slices.
constexpr const char* kSlicesKey = "lockstep.slices";
/// The metadata key for slices in a file that is not part of a set, since the other parts are on
/// other hosts' disks.
constexpr const char* kPartKey = "lockstep.part_of_rank";

/// A part of a tensor as an entry of a file. It holds the elements from `begin` on of a tensor of
/// `shape`, flattened row by row. The entry is 1-D with that number of elements.
struct Slice {
  std::vector<int64_t> shape;
  int64_t begin = 0;
};

/// Slices by the name of the tensor, which is also that of the entry.
using Slices = std::map<std::string, Slice>;

/// Returns the number of elements of a shape; nothing if it has a negative dimension, or is
/// impossibly large.
std::optional<int64_t> element_count(const std::vector<int64_t>& shape);

/// Renders `{"name":{"begin":6,"shape":[4,3]}}`. Throws CheckpointError, naming `path` and the
/// tensor, for a shape that has no element_count, a `begin` beyond it, and a name that is not
/// UTF-8.
std::string render_slices(const std::string& path, const Slices& slices);

/// Parses the text of render_slices strictly. Throws CheckpointError for text that it would not
/// write.
Slices parse_slices(const std::string& path, std::string_view text);

/// Throws CheckpointError, naming `path` and the tensor, unless an entry of `entry_shape` can be
/// `slice`: one dimension, and no element beyond the tensor.
void check_slice_fits(
    const std::string& path,
    const std::string& name,
    const std::vector<int64_t>& entry_shape,
    const Slice& slice);

}  // namespace lockstep::storage
