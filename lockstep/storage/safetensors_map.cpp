// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors_map.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/storage/private_map.h"

namespace lockstep::checkpoint {

SafetensorsMap::SafetensorsMap(const std::filesystem::path& path, Links links)
    : path_(path),
      map_(std::make_shared<PrivateMap>(path, links)),
      header_(parse_safetensors_header(path_, map_->bytes())) {
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
        path_, fmt::format("holds no such tensor; it holds {}", index_.size()), in_quotes(name));
  }
  return header_.tensors[found->second];
}

std::string_view SafetensorsMap::bytes() const {
  return map_->bytes();
}

std::string_view SafetensorsMap::bytes(const TensorEntry& entry) const {
  return bytes().substr(header_.data_begin + entry.begin, entry.end - entry.begin);
}

std::byte* SafetensorsMap::private_bytes(const TensorEntry& entry) const {
  return map_->data() + header_.data_begin + entry.begin;
}

}  // namespace lockstep::checkpoint
