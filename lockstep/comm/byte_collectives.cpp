// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/byte_collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/Functions.h>

namespace lockstep {

std::vector<std::string> all_gather_bytes(Group& group, const std::string& mine) {
  const auto length = static_cast<int64_t>(mine.size());
  const at::Tensor lengths = group.all_gather(at::full({1}, length, at::kLong)).wait();
  const int64_t* each = lengths.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(each, each + group.size());
  at::Tensor padded = at::zeros({longest}, at::kByte);
  if (length > 0) {
    std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  }
  const at::Tensor all = group.all_gather(padded).wait();
  std::vector<std::string> strings;
  for (int rank = 0; rank < group.size(); ++rank) {
    const char* begin = static_cast<const char*>(all.const_data_ptr()) + rank * longest;
    strings.emplace_back(
        each[rank] > 0 ? std::string(begin, static_cast<size_t>(each[rank])) : std::string());
  }
  return strings;
}

std::string broadcast_bytes(Group& group, const std::string& mine, int root) {
  const auto own = static_cast<int64_t>(group.rank() == root ? mine.size() : 0);
  const int64_t length =
      group.broadcast(at::full({1}, own, at::kLong), root).wait().item<int64_t>();
  at::Tensor bytes = at::empty({length}, at::kByte);
  if (group.rank() == root && length > 0) {
    std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  }
  group.broadcast(bytes, root).wait();
  return length > 0
             ? std::string(
                   static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(length))
             : std::string();
}

}  // namespace lockstep
