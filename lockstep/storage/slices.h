// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// The key, in the metadata of a safetensors file, of what render_slices gives.
constexpr const char* kSlicesKey = "lockstep.slices";
/// In its place where a file is no part of a set: who reads it as one would miss the parts that
/// other hosts have on their own disks.
constexpr const char* kPartKey = "lockstep.part_of_rank";

/// What an entry of a file is if it is not a whole tensor: elements `begin` and following of a
/// tensor of `shape`, flattened row by row. The entry itself is 1-D, and as long as there are
/// elements.
struct Slice {
  std::vector<int64_t> shape;
  int64_t begin = 0;
};

/// By the name of the tensor, which is also that of the entry.
using Slices = std::map<std::string, Slice>;

/// Elements of a tensor of that shape; nothing if it has a negative dimension, or is larger than
/// any memory.
std::optional<int64_t> element_count(const std::vector<int64_t>& shape);

/// `{"name":{"begin":6,"shape":[4,3]}}`. CheckpointError, naming `path` and the tensor, for a
/// shape that has no element_count, a `begin` beyond it, and a name that is not UTF-8.
std::string render_slices(const std::string& path, const Slices& slices);

/// The strict inverse: CheckpointError also for whatever render_slices does not write.
Slices parse_slices(const std::string& path, std::string_view text);

/// CheckpointError, naming `path` and the tensor, unless an entry of `entry_shape` can be `slice`:
/// one dimension, and no element beyond the tensor.
void check_slice_fits(
    const std::string& path,
    const std::string& name,
    const std::vector<int64_t>& entry_shape,
    const Slice& slice);

}  // namespace lockstep::checkpoint
