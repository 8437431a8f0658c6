// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/contents.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Functions.h>

#include "lockstep/base/memory/crc32c.h"
#include "lockstep/checkpoint/even_shares.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/offload/scratch_file.h"
#include "lockstep/storage/safetensors/slices.h"

namespace lockstep::checkpoint {
namespace {

/// Tensors, and slices of tensors, that one writer saves.
struct Share {
  NamedTensors tensors;
  storage::Slices slices;
};

/// Returns the elements in [begin, end) of the concatenated bytes of a set.
Share share_of(const NamedTensors& tensors, int64_t begin, int64_t end) {
  Share share;
  int64_t at = 0;
  for (const NamedTensor& item : tensors) {
    const auto item_bytes = static_cast<int64_t>(item.tensor.itemsize());
    const int64_t bytes = item.tensor.numel() * item_bytes;
    // An element belongs to the share of its first byte.
    const auto element = [&](int64_t byte) {
      return std::clamp((byte - at + item_bytes - 1) / item_bytes, int64_t{0}, item.tensor.numel());
    };
    const int64_t first = element(begin);
    const int64_t last = element(end);
    const bool is_full = bytes == 0 ? begin == 0 : first == 0 && last == item.tensor.numel();
    if (is_full) {
      share.tensors.push_back(item);
    } else if (first < last) {
      share.tensors.push_back(
          {item.name, item.tensor.detach().contiguous().flatten().slice(0, first, last)});
      share.slices.emplace(item.name, storage::Slice{item.tensor.sizes().vec(), first});
    }
    at += bytes;
  }
  return share;
}

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& item : tensors) {
    bytes += static_cast<int64_t>(item.tensor.nbytes());
  }
  return bytes;
}

std::string description(const NamedTensors& tensors) {
  std::string text;
  for (const NamedTensor& item : tensors) {
    text += fmt::format(
        "{} {} {}\n",
        item.name,
        c10::toString(item.tensor.scalar_type()),
        fmt::join(item.tensor.sizes(), "x"));
  }
  return text;
}

}  // namespace

void Contents::add_tensors(
    std::string file_name, NamedTensors tensors, std::map<std::string, std::string> metadata) {
  files_.push_back({std::move(file_name), std::move(tensors), std::move(metadata), std::nullopt});
}

void Contents::add_json(std::string file_name, nlohmann::json value) {
  files_.push_back({std::move(file_name), {}, {}, std::optional(std::move(value))});
}

void Contents::add_shared(
    const std::string& stem,
    const NamedTensors& tensors,
    int rank,
    size_t writers_per_rank,
    EvenShares& shares) {
  const std::vector<EvenShares::Range> ranges = shares.divide(bytes_of(tensors));
  must_agree(
      "the tensors of " + stem,
      fmt::format(
          "crc32c {:08x} in shares {}", crc32c(description(tensors)), fmt::join(ranges, ", ")));
  std::vector<size_t> writers;  // Writers with a nonempty share.
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i].second) {
      writers.push_back(i);
    }
  }
  const auto is_own = [&](size_t writer) {
    return writer / writers_per_rank == static_cast<size_t>(rank);
  };
  if (writers.size() <= 1) {
    if (is_own(writers.empty() ? 0 : writers.front())) {
      add_tensors(stem + ".safetensors", tensors);
    }
    return;
  }
  for (size_t part = 0; part < writers.size(); ++part) {
    if (!is_own(writers[part])) {
      continue;
    }
    Share share = share_of(tensors, ranges[writers[part]].first, ranges[writers[part]].second);
    std::map<std::string, std::string> metadata;
    if (!share.slices.empty()) {
      metadata[storage::kSlicesKey] = storage::render_slices(stem, share.slices);
    }
    add_tensors(
        fmt::format("{}-{:05}-of-{:05}.safetensors", stem, part + 1, writers.size()),
        std::move(share.tensors),
        std::move(metadata));
  }
}

void Contents::append(Contents other) {
  std::ranges::move(other.files_, std::back_inserter(files_));
}

void Contents::must_agree(const std::string& what, const std::string& value) {
  agreed_[what] = value;
}

void Contents::fail(const std::string& why) {
  if (failure_.empty()) {
    failure_ = why.empty() ? "no reason given" : why;
  }
}

int64_t Contents::tensor_bytes() const {
  int64_t bytes = 0;
  for (const FileContents& file : files_) {
    bytes += bytes_of(file.tensors);
  }
  return bytes;
}

void Contents::copy_to_host(const Contents& former) {
  std::map<std::string, std::map<std::string, at::Tensor>> memory;
  for (const FileContents& file : former.files_) {
    for (const NamedTensor& item : file.tensors) {
      memory[file.name].emplace(item.name, item.tensor);
    }
  }
  for (FileContents& file : files_) {
    auto& reusable = memory[file.name];
    for (NamedTensor& item : file.tensors) {
      const at::Tensor source = comm::is_sharded_param(item.tensor)
                                    ? item.tensor.detach()
                                    : offload::in_memory(item.tensor.detach());
      const auto found = reusable.find(item.name);
      const bool fits = found != reusable.end() &&
                        found->second.scalar_type() == source.scalar_type() &&
                        found->second.sizes() == source.sizes();
      at::Tensor copy =
          fits ? found->second : at::empty(source.sizes(), source.options().device(at::kCPU));
      flat::copy_values(copy, source);
      item.tensor = std::move(copy);
    }
  }
}

}  // namespace lockstep::checkpoint
