// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/agreement.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/flat/coalesce.h"

namespace lockstep {
namespace {

std::string describe(const NamedTensor& item) {
  return fmt::format(
      "{} {}[{}]{}{}{}",
      item.name,
      c10::toString(item.tensor.scalar_type()),
      fmt::join(item.tensor.sizes(), ", "),
      item.tensor.is_contiguous()
          ? ""
          : fmt::format(" strides [{}]", fmt::join(item.tensor.strides(), ", ")),
      item.tensor.requires_grad() ? "" : " (frozen)",
      item.tensor.is_cpu()
          ? ""
          : std::string(" on ") + c10::DeviceTypeName(item.tensor.device().type()));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

bool is_same_everywhere(Group& group, const std::string& mine) {
  const auto hash = static_cast<int64_t>(std::hash<std::string>{}(mine));
  const at::Tensor hashes = group.all_gather(at::full({1}, hash, at::kLong)).wait();
  const int64_t* each = hashes.const_data_ptr<int64_t>();
  return std::all_of(each, each + group.size(), [&](int64_t other) { return other == each[0]; });
}

}  // namespace

void check_same_on_all_ranks(Group& group, const NamedTensors& tensors, const std::string& what) {
  if (group.size() == 1) {
    return;
  }
  std::string mine;
  for (const NamedTensor& item : tensors) {
    mine += describe(item) + "\n";
  }
  if (is_same_everywhere(group, mine)) {
    return;
  }
  std::vector<std::vector<std::string>> by_rank;
  for (const std::string& text : all_gather_bytes(group, mine)) {
    by_rank.push_back(lines_of(text));
  }
  const auto item_of = [&](size_t rank, size_t i) {
    return i < by_rank[rank].size() ? by_rank[rank][i] : std::string("nothing");
  };
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    const size_t most = std::max(by_rank[0].size(), by_rank[rank].size());
    for (size_t i = 0; i < most; ++i) {
      if (item_of(0, i) != item_of(rank, i)) {
        throw ConfigError(
            "prepare",
            fmt::format(
                "the model differs between ranks at {} {}; rank 0 has {}, rank {} has {}; build "
                "the same model on every rank",
                what,
                i,
                item_of(0, i),
                rank,
                item_of(rank, i)));
      }
    }
  }
}

NamedTensors tensors_on_all_ranks(Group& group, const NamedTensors& tensors) {
  std::set<std::string> names;
  std::map<std::string, NamedTensor> by_line;
  std::string mine;
  for (const NamedTensor& item : tensors) {
    if (!names.insert(item.name).second) {
      throw ConfigError(
          "local_sgd",
          fmt::format(
              "two tensors are named {}, expected a different name for each; rename one",
              item.name));
    }
    by_line[describe(item)] = item;
  }
  for (const auto& [line, item] : by_line) {
    mine += line + "\n";
  }
  if (group.size() > 1 && !is_same_everywhere(group, mine)) {
    for (const std::string& text : all_gather_bytes(group, mine)) {
      const std::vector<std::string> theirs = lines_of(text);  // Sorted, as a map is.
      std::erase_if(by_line, [&](const auto& item) {
        return !std::binary_search(theirs.begin(), theirs.end(), item.first);
      });
    }
  }
  NamedTensors everywhere;
  for (const auto& [line, item] : by_line) {
    everywhere.push_back(item);
  }
  return everywhere;
}

std::vector<at::Tensor> broadcast_initial_values(
    Group& group, const NamedTensors& parameters, const NamedTensors& buffers) {
  check_same_on_all_ranks(group, parameters, "parameter");
  check_same_on_all_ranks(group, buffers, "buffer");
  std::vector<at::Tensor> everything = tensors_of(parameters);
  const std::vector<at::Tensor> all_buffers = tensors_of(buffers);
  everything.insert(everything.end(), all_buffers.begin(), all_buffers.end());
  std::vector<at::Tensor> full;
  std::copy_if(
      everything.begin(), everything.end(), std::back_inserter(full), [](const at::Tensor& tensor) {
        return !comm::is_sharded_param(tensor);  // zero_init has broadcast those.
      });
  flat::broadcast_coalesced(group, full);
  return everything;
}

}  // namespace lockstep
