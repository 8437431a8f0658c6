// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/safetensors_map.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/file/private_map.h"

namespace lockstep::storage {
namespace {

// Long enough to make the call cheap, and short enough to stay in the cache.
constexpr size_t kVisitBytes = size_t{4} << 20;

SafetensorsHeader header_of(const std::string& path, const PrivateMap& map) {
  const std::string_view file = map.bytes();
  map.fetch(0, std::min(file.size(), kLengthBytes));
  map.fetch(0, safetensors_header_bytes(path, file.substr(0, kLengthBytes), file.size()));
  return parse_safetensors_header(path, file);
}

}  // namespace

SafetensorsMap::SafetensorsMap(const std::filesystem::path& path, Links links)
    : path_(path),
      map_(std::make_shared<PrivateMap>(path, links)),
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
  return map_->bytes();
}

std::string_view SafetensorsMap::bytes(const TensorEntry& entry) const {
  return bytes().substr(header_.data_begin + entry.begin, entry.end - entry.begin);
}

void SafetensorsMap::fetch(const TensorEntry& entry) const {
  map_->fetch(header_.data_begin + entry.begin, entry.end - entry.begin, in_quotes(entry.name));
}

void SafetensorsMap::fetch(
    const TensorEntry& entry, const std::function<void(std::string_view chunk)>& visit) const {
  const std::string_view all = bytes(entry);
  for (size_t done = 0; done < all.size(); done += kVisitBytes) {
    const std::string_view chunk = all.substr(done, kVisitBytes);
    map_->fetch(header_.data_begin + entry.begin + done, chunk.size(), in_quotes(entry.name));
    visit(chunk);
  }
}

std::byte* SafetensorsMap::private_bytes(const TensorEntry& entry) const {
  return map_->data() + header_.data_begin + entry.begin;
}

}  // namespace lockstep::storage
