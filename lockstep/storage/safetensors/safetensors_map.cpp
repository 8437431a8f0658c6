// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/safetensors_map.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::storage {
namespace {

// Long enough to make the call cheap, and short enough to stay in the cache.
constexpr size_t kVisitBytes = size_t{4} << 20;

std::string_view bytes_of(const FileMap& map) {
  return {reinterpret_cast<const char*>(map.data()), map.size()};
}

SafetensorsHeader header_of(const std::string& path, const FileMap& map) {
  const std::string_view file = bytes_of(map);
  fetch_pages(path, map, 0, std::min(file.size(), kLengthBytes));
  const uint64_t header = safetensors_header_bytes(path, file.substr(0, kLengthBytes), file.size());
  fetch_pages(path, map, 0, header);
  return parse_safetensors_header(path, file);
}

}  // namespace

SafetensorsMap::SafetensorsMap(const std::filesystem::path& path, Links links)
    : path_(path),
      map_(std::make_shared<const FileMap>(map_private(path, links))),
      header_(header_of(path_, *map_)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

std::vector<std::string> SafetensorsMap::names() const {
  std::vector<std::string> names;
  for (const TensorEntry& entry : entries()) {
    names.push_back(entry.name);
  }
  return names;
}

const TensorEntry& SafetensorsMap::entry(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    throw CheckpointError(
        path_,
        fmt::format("has no such tensor; the file has {} tensors", index_.size()),
        in_quotes(name));
  }
  return header_.tensors[found->second];
}

std::string_view SafetensorsMap::bytes() const {
  return bytes_of(*map_);
}

std::string_view SafetensorsMap::bytes(const TensorEntry& entry) const {
  return bytes().substr(header_.data_begin + entry.begin, entry.end - entry.begin);
}

void SafetensorsMap::fetch(const TensorEntry& entry) const {
  const size_t begin = header_.data_begin + entry.begin;
  fetch_pages(path_, *map_, begin, entry.end - entry.begin, in_quotes(entry.name));
}

void SafetensorsMap::fetch(
    const TensorEntry& entry, const std::function<void(std::string_view chunk)>& visit) const {
  const std::string_view all = bytes(entry);
  for (size_t done = 0; done < all.size(); done += kVisitBytes) {
    const std::string_view chunk = all.substr(done, kVisitBytes);
    const size_t begin = header_.data_begin + entry.begin + done;
    fetch_pages(path_, *map_, begin, chunk.size(), in_quotes(entry.name));
    visit(chunk);
  }
}

std::byte* SafetensorsMap::private_bytes(const TensorEntry& entry) const {
  return map_->data() + header_.data_begin + entry.begin;
}

}  // namespace lockstep::storage
