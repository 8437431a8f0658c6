// SPDX-License-Identifier: Apache-2.0
//
// libFuzzer target for sets of several files. The first byte selects the rest: 0, the slices in a
// file's metadata; 1, the files of a TensorSet, whose manifest is always correct; 2, an index of
// weights up to a NUL, and its files, for open_model_files.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/storage/model_files.h"
#include "lockstep/storage/stored_checkpoint.h"
#include "lockstep/storage/tensor_set.h"
#include "tests/fuzz/made_up_files.h"
#include "tests/fuzz/require.h"

namespace {

namespace fs = std::filesystem;
using lockstep::CheckpointError;
using lockstep::fuzz::Bytes;
using lockstep::fuzz::made_up_file;
using lockstep::fuzz::MadeUpEntry;
using lockstep::fuzz::MadeUpFile;
using lockstep::fuzz::product;
using lockstep::fuzz::require;
using lockstep::fuzz::Wide;
using lockstep::storage::SafetensorsMap;
using lockstep::storage::Slices;
using lockstep::storage::TensorEntry;
using lockstep::storage::TensorSet;

/// Elements of the largest tensor that the entries of an input can cover.
constexpr Wide kMostElements = 4096;

/// The folder of the files, which each input replaces.
fs::path folder(const std::string& of) {
  static const lockstep::TestFolder all;
  fs::create_directory(all / of);
  return all / of;
}

void try_slices(const std::string& text) {
  Slices slices;
  try {
    slices = lockstep::storage::parse_slices("the/file", text);
  } catch (const CheckpointError& error) {
    lockstep::fuzz::require_fit_to_print(error, "the/file");
    return;
  }
  for (const auto& [name, slice] : slices) {
    const auto elements = lockstep::storage::element_count(slice.shape);
    require(elements && slice.begin >= 0 && slice.begin <= *elements, "a slice outside its tensor");
  }
  const std::string rendered = lockstep::storage::render_slices("the/file", slices);
  const Slices back = lockstep::storage::parse_slices("the/file", rendered);
  const auto same = [](const auto& left, const auto& right) {
    return left.first == right.first && left.second.shape == right.second.shape &&
           left.second.begin == right.second.begin;
  };
  require(
      std::equal(slices.begin(), slices.end(), back.begin(), back.end(), same),
      "other slices after a round trip");
}

/// Counts element by element, unlike TensorSet.
bool is_covered_once(const std::vector<const MadeUpEntry*>& entries) {
  const Wide elements = product(entries.front()->tensor_shape);
  if (elements > kMostElements) {
    return false;
  }
  std::vector<int> times(static_cast<size_t>(elements));
  for (const MadeUpEntry* entry : entries) {
    const Wide begin = entry->begin.value_or(0);
    for (Wide i = begin; i < begin + product(entry->shape); ++i) {
      if (i >= elements) {
        return false;
      }
      ++times[static_cast<size_t>(i)];
    }
  }
  return std::all_of(times.begin(), times.end(), [](int count) { return count == 1; });
}

std::map<std::string, std::vector<const MadeUpEntry*>> by_name(
    const std::vector<MadeUpFile>& files) {
  std::map<std::string, std::vector<const MadeUpEntry*>> entries;
  for (const MadeUpFile& file : files) {
    for (const MadeUpEntry& entry : file.entries) {
      entries[entry.name].push_back(&entry);
    }
  }
  return entries;
}

void require_whole(const TensorSet& set, const std::vector<MadeUpFile>& files) {
  const auto expected = by_name(files);
  require(set.tensors().size() == expected.size(), "more or fewer tensors than there are names");
  for (const auto& tensor : set.tensors()) {
    const std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
    int64_t next = 0;
    for (const auto& piece : tensor.slices) {
      const TensorEntry& entry = set.file(piece.file).entries()[piece.entry];
      require(piece.begin == next && piece.count > 0, "a hole, an overlap or an empty piece");
      require(entry.name == tensor.name && entry.dtype == tensor.dtype, "another tensor's piece");
      require(
          set.bytes(piece).size() == static_cast<size_t>(piece.count) * dtype_bytes(tensor.dtype),
          "a piece whose bytes are not its elements");
      next += piece.count;
    }
    require(product(shape) == static_cast<uint64_t>(next), "pieces that are not the tensor");
    require(tensor.elements() == next, "another number of elements");
    const auto& entries = expected.at(tensor.name);
    require(is_covered_once(entries), "accepted, with elements that lie in none or two");
    for (const MadeUpEntry* entry : entries) {
      require(
          entry->dtype == tensor.dtype && entry->tensor_shape == shape,
          "accepted, though the files do not agree");
    }
  }
}

/// Decodes a byte for the number of files, and one for their names: 0, the correct ones.
void try_set(Bytes bytes) {
  const fs::path path = folder("set");
  const unsigned count = bytes.next() % 4;
  const unsigned names = bytes.next();
  const std::vector<std::string> odd = {
      "set.safetensors",
      "set-00001-of-00002.safetensors",
      "set-00003-of-00003.safetensors",
      "set-0002-of-0002.safetensors",
      "set-more-00001-of-00001.safetensors",
      "set-00000-of-00001.safetensors",
      "set-99999-of-99999.safetensors",
      "set.json"};
  std::vector<MadeUpFile> files;
  lockstep::storage::Manifest manifest{
      .sequence = 1, .world_size = 2, .meta = nlohmann::json::object(), .files = {}};
  std::set<std::string> used;
  for (unsigned i = 1; i <= count; ++i) {
    files.push_back(made_up_file(bytes));
    std::string name = count == 1 ? odd[0]
                                  : "set-0000" + std::to_string(i) + "-of-0000" +
                                        std::to_string(count) + ".safetensors";
    if (names != 0) {
      name = odd[(names >> 3U * (i - 1)) % odd.size()];
    }
    if (used.insert(name).second) {
      lockstep::fuzz::write_anew(path / name, files.back().text);
      manifest.files.push_back({name, files.back().summary});
    }
  }
  lockstep::fuzz::write_anew(
      path / lockstep::storage::kManifestName, lockstep::storage::render_manifest(path, manifest));
  try {
    const lockstep::storage::StoredCheckpoint checkpoint(path);
    TensorSet::stems(checkpoint);
    const TensorSet set(checkpoint, "set");
    if (names == 0) {
      require_whole(set, files);
    }
  } catch (const CheckpointError& error) {
    lockstep::fuzz::require_fit_to_print(error, path);
    const std::string why = error.what();
    if (names == 0 && (why.find("leave a gap") != why.npos || why.find("overlap") != why.npos)) {
      const auto entries = by_name(files);
      require(
          !std::all_of(
              entries.begin(),
              entries.end(),
              [](const auto& of_name) { return is_covered_once(of_name.second); }),
          "refused, with every element in exactly one: " + why);
    }
  }
}

/// Requires that the opened files match the index, which is parsed independently of
/// open_model_files. A wrong metadata.total_size only causes a warning.
void require_indexed(
    const std::vector<SafetensorsMap>& files, const fs::path& path, const std::string& index) {
  const nlohmann::json json = nlohmann::json::parse(index);
  size_t tensors = 0;
  for (const SafetensorsMap& file : files) {
    require(fs::path(file.path()).parent_path() == path, "a file from elsewhere");
    for (const TensorEntry& entry : file.entries()) {
      require(
          json["weight_map"].at(entry.name) == fs::path(file.path()).filename().string(),
          "a tensor from a file that the index does not name for it");
      ++tensors;
    }
  }
  require(json["weight_map"].size() == tensors, "tensors that the index lists and no file holds");
}

void try_model(Bytes bytes) {
  const fs::path path = folder("model");
  const std::string index(bytes.text());
  lockstep::fuzz::write_anew(path / lockstep::storage::kModelIndex, index);
  for (const char* name :
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    lockstep::fuzz::write_anew(path / name, made_up_file(bytes).text);
  }
  try {
    require_indexed(lockstep::storage::open_model_files(path), path, index);
  } catch (const CheckpointError& error) {
    lockstep::fuzz::require_fit_to_print(error, path);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  Bytes bytes({reinterpret_cast<const char*>(input), size});
  switch (bytes.next() % 3) {
    case 0:
      try_slices(std::string(bytes.rest()));
      break;
    case 1:
      try_set(bytes);
      break;
    default:
      try_model(bytes);
  }
  return 0;
}
