// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/parts/model_values.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/flat/copy_values.h"

namespace lockstep::internal {
namespace {

/// Returns whether `saved` is an fp32 master, which ZeRO saves for a 16-bit parameter.
bool is_master(const at::Tensor& saved, const at::Tensor& current) {
  return saved.scalar_type() == at::kFloat &&
         (current.scalar_type() == at::kHalf || current.scalar_type() == at::kBFloat16);
}

}  // namespace

NamedTensors without_ties(NamedTensors parameters, const NamedTensors& buffers) {
  parameters.insert(parameters.end(), buffers.begin(), buffers.end());
  std::set<const void*> seen;
  NamedTensors unique;
  for (NamedTensor& item : parameters) {
    if (seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      unique.push_back(std::move(item));
    }
  }
  return unique;
}

std::function<void()> check_model(
    const NamedTensors& current, NamedTensors saved, const std::string& path, bool strict) {
  std::map<std::string, at::Tensor> left;
  for (NamedTensor& item : saved) {
    left.emplace(item.name, item.tensor);
  }
  std::vector<std::string> missing;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  int64_t rounded = 0;
  for (const NamedTensor& item : current) {
    const auto found = left.find(item.name);
    if (found == left.end()) {
      missing.push_back(item.name);
      continue;
    }
    const at::Tensor& value = found->second;
    const bool rounds = is_master(value, item.tensor);
    if (value.sizes() != item.tensor.sizes() ||
        !(rounds || value.scalar_type() == item.tensor.scalar_type())) {
      throw CheckpointError(
          path,
          fmt::format(
              "is {}[{}]; this program's model has {}[{}]",
              c10::toString(value.scalar_type()),
              fmt::join(value.sizes(), ", "),
              c10::toString(item.tensor.scalar_type()),
              fmt::join(item.tensor.sizes(), ", ")),
          item.name);
    }
    rounded += rounds ? 1 : 0;
    copies.emplace_back(item.tensor, value);
    left.erase(found);
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, unused] : left) {
    unexpected.push_back(name);
  }
  if (!missing.empty() || !unexpected.empty()) {
    const std::string differences = fmt::format(
        "missing: [{}], unexpected: [{}]", fmt::join(missing, ", "), fmt::join(unexpected, ", "));
    if (strict) {
      throw CheckpointError(path, "belongs to another model; " + differences);
    }
    log_warning(
        fmt::format("{} belongs to another model, and is loaded in part; {}", path, differences));
  }
  if (rounded > 0) {
    log_warning(fmt::format(
        "{} holds fp32 values of {} tensors that this program trains in 16 bits without masters: "
        "the values are rounded; use ZeRO stages 1 to 3 to keep fp32 masters",
        path,
        rounded));
  }
  return [copies = std::move(copies)] {
    for (const auto& [parameter, value] : copies) {
      flat::copy_values(parameter, value);
    }
  };
}

NamedTensors sum_of(const std::vector<NamedTensors>& ranks, double factor) {
  std::map<std::string, at::Tensor> sums;
  for (const NamedTensors& rank : ranks) {
    for (const NamedTensor& item : rank) {
      const auto [sum, is_new] = sums.emplace(item.name, item.tensor);
      if (!is_new && item.tensor.is_floating_point()) {
        sum->second = at::add(sum->second, item.tensor);
      }
    }
  }
  NamedTensors scaled;
  for (const auto& [name, sum] : sums) {
    scaled.push_back({name, sum.is_floating_point() ? at::mul(sum, factor) : sum});
  }
  return scaled;
}

NamedTensors mean_of(const std::vector<NamedTensors>& ranks) {
  std::map<std::string, NamedTensors> by_name;
  for (const NamedTensors& rank : ranks) {
    for (const NamedTensor& item : rank) {
      by_name[item.name].push_back(item);
    }
  }
  NamedTensors means;
  for (const auto& [name, items] : by_name) {
    const at::Tensor& first = items.front().tensor;
    const bool equal = std::all_of(items.begin(), items.end(), [&](const NamedTensor& item) {
      return at::equal(item.tensor, first);
    });
    std::vector<NamedTensors> each;
    for (const NamedTensor& item : items) {
      each.push_back({item});
    }
    means.push_back(
        {name,
         equal ? first : sum_of(each, 1.0 / static_cast<double>(each.size())).front().tensor});
  }
  return means;
}

}  // namespace lockstep::internal
