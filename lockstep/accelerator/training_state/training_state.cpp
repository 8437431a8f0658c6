// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/training_state/training_state.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/flat/copy_values.h"

namespace lockstep {

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

at::Tensor random_state() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

NamedTensors random_states(at::Device device) {
  NamedTensors states{{"cpu", random_state()}};
  if (!device.is_cpu()) {
    states.push_back(
        {c10::DeviceTypeName(device.type(), /*lower_case=*/true),
         at::globalContext().defaultGenerator(device).get_state()});
  }
  return states;
}

namespace {

/// Returns whether `saved` is an fp32 master, which ZeRO saves for a 16-bit parameter.
bool is_master(const at::Tensor& saved, const at::Tensor& current) {
  return saved.scalar_type() == at::kFloat &&
         (current.scalar_type() == at::kHalf || current.scalar_type() == at::kBFloat16);
}

}  // namespace

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

std::function<void()> check_loader(
    const std::shared_ptr<data::LoaderCore>& loader, const SavedPosition& saved) {
  loader->check_rows(saved.global_batch_rows);
  if (saved.samples != loader->layout().samples()) {
    throw CheckpointError(
        saved.path,
        fmt::format(
            "was saved with {} samples, this loader has {}; give it the same data",
            saved.samples,
            loader->layout().samples()));
  }
  const data::Cursor cursor = loader->resharded(saved.cursor, saved.global_batch_rows);
  loader->check_cursor(cursor);
  return [loader, cursor] { loader->load_cursor(cursor); };
}

namespace {

/// Returns a seed from a generator in that state, different for each `stream`.
uint64_t seed_of_stream(const at::Tensor& state, int stream) {
  at::Generator generator = at::detail::createCPUGenerator();
  generator.set_state(state);
  for (int i = 0; i < stream; ++i) {
    at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

/// Throws CheckpointError unless a generator on the CPU takes the state.
void expect_random_state(const at::Tensor& state, const std::string& path) {
  try {
    at::Generator generator = at::detail::createCPUGenerator();
    generator.set_state(state);
  } catch (const c10::Error&) {
    throw CheckpointError(
        path, "holds no valid state of torch's generator; load another checkpoint", "cpu");
  }
}

}  // namespace

std::function<void()> check_random_state(
    const NamedTensors& saved, int stream, const std::string& path, at::Device device) {
  std::map<std::string, at::Tensor> values;
  for (const NamedTensor& current : random_states(device)) {
    const auto found = std::find_if(saved.begin(), saved.end(), [&](const NamedTensor& item) {
      return item.name == current.name;
    });
    if (found == saved.end() && current.name != "cpu") {
      continue;
    }
    if (found == saved.end() || found->tensor.scalar_type() != current.tensor.scalar_type() ||
        found->tensor.sizes() != current.tensor.sizes()) {
      throw CheckpointError(path, "holds no random state of this version of torch", current.name);
    }
    if (current.name == "cpu") {
      expect_random_state(found->tensor.clone(), path);
    }
    values.emplace(current.name, found->tensor.clone());
  }
  return [values = std::move(values), stream, device] {
    for (const auto& [name, value] : values) {
      at::Generator generator =
          at::globalContext().defaultGenerator(name == "cpu" ? at::Device(at::kCPU) : device);
      if (stream == 0) {
        generator.set_state(value);
      } else {
        generator.set_current_seed(seed_of_stream(values.at("cpu"), stream));
      }
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

void throw_together(
    Group& group,
    const std::string& failure,
    const std::filesystem::path& folder,
    const char* could_not) {
  const std::vector<std::string> failures = all_gather_bytes(group, failure);
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) {
      throw CheckpointError(
          folder.string(), fmt::format("rank {} {}: {}", rank, could_not, failures[rank]));
    }
  }
}

NamedTensors gradients_of(const NamedTensors& parameters) {
  std::set<const void*> seen;
  NamedTensors gradients;
  for (const NamedTensor& item : parameters) {
    if (item.tensor.grad().defined() && seen.insert(item.tensor.unsafeGetTensorImpl()).second) {
      gradients.push_back({item.name, item.tensor.grad().detach()});
    }
  }
  return gradients;
}

std::function<void()> check_gradients(
    const NamedTensors& parameters, const NamedTensors& saved, const std::string& path) {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (const NamedTensor& item : saved) {
    const auto owner = std::find_if(parameters.begin(), parameters.end(), [&](const auto& other) {
      return other.name == item.name && other.tensor.sizes() == item.tensor.sizes() &&
             other.tensor.scalar_type() == item.tensor.scalar_type();
    });
    if (owner == parameters.end()) {
      throw CheckpointError(
          path, "is a gradient that fits no parameter of this program", item.name);
    }
    pairs.emplace_back(
        owner->tensor,
        item.tensor.to(
            owner->tensor.device(),
            item.tensor.scalar_type(),
            /*non_blocking=*/false,
            /*copy=*/true));
  }
  return [pairs = std::move(pairs)] {
    for (const auto& [parameter, gradient] : pairs) {
      parameter.mutable_grad() = gradient;
    }
  };
}

}  // namespace lockstep
