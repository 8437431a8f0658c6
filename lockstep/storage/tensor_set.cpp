// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/tensor_set.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/manifest.h"
#include "lockstep/storage/safetensors/slices.h"

namespace lockstep::storage {
namespace {

constexpr const char* kSuffix = ".safetensors";

std::string single_file_name(const std::string& stem) {
  return stem + kSuffix;
}

std::string part_name(const std::string& stem, uint64_t number, uint64_t count) {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, number, count, kSuffix);
}

struct PartName {
  std::string file;
  uint64_t number = 0;
  uint64_t count = 0;
};

/// Returns nothing if the file is not a part of that stem.
std::optional<PartName> parse_part_name(const std::string& file, const std::string& stem) {
  if (!file.starts_with(stem + "-")) {
    return std::nullopt;
  }
  PartName part{.file = file};
  const char* const end = file.data() + file.size();
  const char* const number = file.data() + stem.size() + 1;
  const char* const after = std::from_chars(number, end, part.number).ptr;
  constexpr std::string_view kBetween = "-of-";
  if (!std::string_view(after, end).starts_with(kBetween)) {
    return std::nullopt;
  }
  std::from_chars(after + kBetween.size(), end, part.count);
  // Rendering the name again refuses missing digits, extra zeros, overflow, and other suffixes.
  const bool valid = file == part_name(stem, part.number, part.count) && part.number > 0 &&
                     part.number <= part.count;
  return valid ? std::optional(part) : std::nullopt;
}

std::vector<PartName> part_names(const StoredCheckpoint& checkpoint, const std::string& stem) {
  std::vector<PartName> parts;
  for (const FileRecord& record : checkpoint.manifest().files) {
    if (auto part = parse_part_name(record.name, stem)) {
      parts.push_back(std::move(*part));
    }
  }
  std::sort(parts.begin(), parts.end(), [](const PartName& left, const PartName& right) {
    return std::pair(left.count, left.number) < std::pair(right.count, right.number);
  });
  return parts;
}

/// Returns all files of a stem, in order. Throws if one is missing.
std::vector<std::string> file_names(const StoredCheckpoint& checkpoint, const std::string& stem) {
  const std::string single = single_file_name(stem);
  const std::vector<PartName> parts = part_names(checkpoint, stem);
  if (parts.empty()) {
    if (!checkpoint.has(single)) {
      throw CheckpointError(
          checkpoint.path(),
          fmt::format("holds neither {} nor parts like {}", single, part_name(stem, 1, 2)));
    }
    return {single};
  }
  if (checkpoint.has(single)) {
    throw CheckpointError(
        checkpoint.path() / single,
        fmt::format("exists next to {}; expected one file or parts, not both", parts.front().file));
  }
  if (parts.front().count != parts.back().count) {
    throw CheckpointError(
        checkpoint.path() / parts.back().file,
        fmt::format(
            "is one of {} parts, but {} is one of {}; expected the same number in all names",
            parts.back().count,
            parts.front().file,
            parts.front().count));
  }
  std::vector<std::string> names;
  while (names.size() < parts.front().count) {
    const std::string expected = part_name(stem, names.size() + 1, parts.front().count);
    if (names.size() == parts.size() || parts[names.size()].file != expected) {
      throw CheckpointError(
          checkpoint.path() / expected,
          fmt::format(
              "is missing; {} lists {} of {} parts",
              kManifestName,
              parts.size(),
              parts.front().count));
    }
    names.push_back(expected);
  }
  return names;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Returns the tensor of one entry, which may be a slice of it.
SetTensor describe(const SafetensorsMap& map, size_t part, size_t index, const Slices& slices) {
  const TensorEntry& entry = map.entries()[index];
  const auto count = static_cast<int64_t>((entry.end - entry.begin) / dtype_bytes(entry.dtype));
  SetTensor tensor{.name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .slices = {}};
  TensorSlice tensor_slice{.file = part, .entry = index, .begin = 0, .count = count};
  const auto slice = slices.find(entry.name);
  if (slice != slices.end()) {
    check_slice_fits(map.path(), entry.name, entry.shape, slice->second);
    tensor_slice.begin = slice->second.begin;
    tensor.shape = slice->second.shape;
  }
  tensor.slices.push_back(tensor_slice);
  return tensor;
}

/// Adds the slice of `part` to `tensor`, which has slices of other files.
void merge(SetTensor& tensor, const SetTensor& part, const SafetensorsMap& map) {
  if (tensor.dtype != part.dtype || tensor.shape != part.shape) {
    throw CheckpointError(
        map.path(),
        fmt::format(
            "differs from its slice in another file of the set; got {} {}, expected {} {}",
            dtype_name(part.dtype),
            shape_text(part.shape),
            dtype_name(tensor.dtype),
            shape_text(tensor.shape)),
        in_quotes(part.name));
  }
  tensor.slices.push_back(part.slices.front());
}

Slices slices_of(const SafetensorsMap& map) {
  const auto found = map.metadata().find(kSlicesKey);
  if (found == map.metadata().end()) {
    return {};
  }
  Slices slices = parse_slices(map.path(), found->second);
  for (const auto& [name, slice] : slices) {
    if (!map.has(name)) {
      throw CheckpointError(
          map.path(),
          fmt::format("has bad {} metadata; the file has no such tensor", kSlicesKey),
          in_quotes(name));
    }
  }
  return slices;
}

}  // namespace

TensorSet::TensorSet(const StoredCheckpoint& checkpoint, const std::string& stem)
    : path_(checkpoint.path() / single_file_name(stem)) {
  std::map<std::string, SetTensor> found;
  for (const std::string& name : file_names(checkpoint, stem)) {
    Part part{checkpoint.record(name), checkpoint.open_tensors(name), nullptr};
    const size_t count = part.map.entries().size();
    part.verified = std::make_unique<std::atomic<bool>[]>(count);
    const Slices slices = slices_of(part.map);
    for (size_t i = 0; i < count; ++i) {
      SetTensor tensor = describe(part.map, parts_.size(), i, slices);
      const auto known = found.find(tensor.name);
      if (known == found.end()) {
        found.emplace(tensor.name, std::move(tensor));
      } else {
        merge(known->second, tensor, part.map);
      }
    }
    parts_.push_back(std::move(part));
  }
  for (auto& [name, tensor] : found) {
    check_cover(tensor);
    tensors_.push_back(std::move(tensor));
  }
}

void TensorSet::check_cover(SetTensor& tensor) const {
  // The file that an error names if no slice is left.
  const std::string* path = &file(tensor.slices.front().file).path();
  std::erase_if(tensor.slices, [](const TensorSlice& slice) { return slice.count == 0; });
  std::sort(tensor.slices.begin(), tensor.slices.end(), [](const auto& left, const auto& right) {
    return left.begin < right.begin;
  });
  const auto refuse = [&](const char* what, int64_t begin, int64_t end) {
    throw CheckpointError(
        *path,
        fmt::format(
            "has slices that {} at elements {} to {} of {}",
            what,
            begin,
            end,
            shape_text(tensor.shape)),
        in_quotes(tensor.name));
  };
  constexpr const char* kGap = "leave a gap";
  int64_t next = 0;
  for (const TensorSlice& slice : tensor.slices) {
    path = &file(slice.file).path();
    if (slice.begin > next) {
      refuse(kGap, next, slice.begin);
    }
    if (slice.begin < next) {
      refuse("overlap", slice.begin, std::min(next, slice.begin + slice.count));
    }
    next += slice.count;
  }
  const std::optional<int64_t> elements = element_count(tensor.shape);
  if (!elements) {
    throw CheckpointError(
        *path,
        fmt::format("has the shape {}, which has too many elements", shape_text(tensor.shape)),
        in_quotes(tensor.name));
  }
  if (next != *elements) {
    refuse(kGap, next, *elements);
  }
}

bool TensorSet::exists(const StoredCheckpoint& checkpoint, const std::string& stem) {
  return checkpoint.has(single_file_name(stem)) || !part_names(checkpoint, stem).empty();
}

std::vector<std::string> TensorSet::stems(const StoredCheckpoint& checkpoint) {
  std::set<std::string> found;
  for (const FileRecord& record : checkpoint.manifest().files) {
    const std::string& name = record.name;
    if (!name.ends_with(kSuffix)) {
      continue;
    }
    std::string stem = name.substr(0, name.size() - std::string_view(kSuffix).size());
    // The stem of a part ends before "-00001-of-00002".
    size_t dash = stem.rfind('-');
    dash = dash == std::string::npos || dash < 4 ? dash : stem.rfind('-', dash - 4);
    if (dash != std::string::npos && parse_part_name(name, stem.substr(0, dash))) {
      stem.resize(dash);
    }
    found.insert(stem);
  }
  return {found.begin(), found.end()};
}

bool TensorSet::has(const std::string& name) const {
  return find(name) != nullptr;
}

const SetTensor& TensorSet::tensor(const std::string& name) const {
  if (const SetTensor* found = find(name)) {
    return *found;
  }
  throw CheckpointError(
      path_,
      fmt::format("has no such tensor; the set has {} tensors", tensors_.size()),
      in_quotes(name));
}

const SetTensor* TensorSet::find(const std::string& name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name, [](const auto& tensor, auto& wanted) {
        return tensor.name < wanted;
      });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

std::vector<std::string> TensorSet::files() const {
  std::vector<std::string> names;
  for (const Part& part : parts_) {
    names.push_back(part.record.name);
  }
  return names;
}

std::string_view TensorSet::bytes(const TensorSlice& slice) const {
  const Part& part = parts_[slice.file];
  const TensorEntry& entry = part.map.entries()[slice.entry];
  std::atomic<bool>& verified = part.verified[slice.entry];
  // Two threads may verify it at once; none returns unverified bytes.
  if (!verified.load(std::memory_order_relaxed)) {
    verify_tensor(part.map, entry, part.record);
    verified.store(true, std::memory_order_relaxed);
  }
  return part.map.bytes(entry);
}

uint32_t TensorSet::crc32c(const TensorSlice& slice) const {
  const Part& part = parts_[slice.file];
  return part.record.summary.tensors.at(part.map.entries()[slice.entry].name);
}

}  // namespace lockstep::storage
