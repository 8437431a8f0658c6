// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/weights/load_model.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/checkpoint/weights/tied_tensors.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/storage/model_files.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kWhere = "load_checkpoint_in_model";
constexpr size_t kNamesShown = 20;

struct Source {
  const storage::SafetensorsMap* file;
  const storage::TensorEntry* entry;
  std::string_view bytes() const {
    file->fetch(*entry);
    return file->bytes(*entry);
  }
};

using Files = std::vector<storage::SafetensorsMap>;

/// Saved tensors by their names after renaming.
using Sources = std::map<std::string, Source>;

std::string renamed(const std::string& name, const std::map<std::string, std::string>& prefixes) {
  const std::pair<const std::string, std::string>* longest = nullptr;
  for (const auto& item : prefixes) {
    if (name.starts_with(item.first) &&
        (longest == nullptr || item.first.size() > longest->first.size())) {
      longest = &item;
    }
  }
  return longest == nullptr ? name : longest->second + name.substr(longest->first.size());
}

Sources sources_in(const Files& files, const std::map<std::string, std::string>& prefixes) {
  Sources sources;
  for (const storage::SafetensorsMap& file : files) {
    for (const storage::TensorEntry& entry : file.entries()) {
      const std::string name = renamed(entry.name, prefixes);
      const auto [other, is_new] = sources.try_emplace(name, Source{&file, &entry});
      if (!is_new) {
        throw CheckpointError(
            file.path(),
            fmt::format(
                "prefix_map renames two tensors to {}; the other is {}; expected distinct names",
                storage::in_quotes(name),
                storage::in_quotes(other->second.entry->name)),
            storage::in_quotes(entry.name));
      }
    }
  }
  return sources;
}

/// Returns whether `module` is `name`, or a module that contains it.
bool is_within(std::string_view name, std::string_view module) {
  return module.empty() || name == module ||
         (name.starts_with(module) && name[module.size()] == '.');
}

void check_device(at::Device device) {
  if (device.is_meta()) {
    throw ConfigError(
        kWhere, "device_map has the device meta, which has no memory; expected a real device");
  }
  try {
    at::empty({1}, at::TensorOptions().device(device));
  } catch (const c10::Error& error) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "device_map has the device {}, which this process cannot use: {}",
            device.str(),
            error.what_without_backtrace()));
  }
}

void check_device_map(
    const NamedTensors& model, const std::map<std::string, at::Device>& device_map) {
  for (const auto& [module, device] : device_map) {
    const bool any =
        std::any_of(model.begin(), model.end(), [&, &wanted = module](const NamedTensor& item) {
          return is_within(item.name, wanted);
        });
    if (!any) {
      throw ConfigError(
          kWhere,
          fmt::format("device_map has '{}', which is not a module or tensor of the model", module));
    }
    check_device(device);
  }
}

at::Device device_of(const NamedTensor& item, const std::map<std::string, at::Device>& device_map) {
  if (device_map.empty()) {
    return item.tensor.device();
  }
  const std::pair<const std::string, at::Device>* longest = nullptr;
  for (const auto& entry : device_map) {
    if (is_within(item.name, entry.first) &&
        (longest == nullptr || entry.first.size() > longest->first.size())) {
      longest = &entry;
    }
  }
  if (longest == nullptr) {
    throw ConfigError(
        kWhere,
        fmt::format("device_map has no device for {}; add \"\" for all other tensors", item.name));
  }
  return longest->second;
}

void check_target(const NamedTensor& item) {
  if (!item.tensor.defined() || item.tensor.layout() != at::kStrided || item.tensor.is_meta()) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "{} has no memory (meta) or is sparse; expected a dense tensor on a real device",
            item.name));
  }
}

std::string joined(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) {
    text += fmt::format(", and {} more", names.size() - shown);
  }
  return text;
}

/// "cuda" without an index means any CUDA device: a tensor on one of them stays there.
bool is_on(const at::Tensor& tensor, at::Device device) {
  return device.has_index() ? tensor.device() == device : tensor.device().type() == device.type();
}

/// One tensor of the model, under all of its names.
struct TargetTensor {
  std::vector<at::Tensor> tied;
  at::Tensor value;                ///< Undefined if it was not saved.
  std::optional<Source> source{};  ///< Its location in the files.
  at::ScalarType dtype;
  at::Device device;
};

class LoadPlan {
 public:
  LoadPlan(const std::filesystem::path& path, const LoadModelOptions& options)
      : path_(path.string()),
        options_(&options),
        files_(std::make_shared<const Files>(storage::open_model_files(path))),
        unused_(sources_in(*files_, options.prefix_map)) {}

  void add(const NamedTensors& model, const std::vector<size_t>& group) {
    const NamedTensor& first = model[group.front()];
    check_target(first);
    TargetTensor target{
        .tied = {},
        .value = {},
        .dtype = first.tensor.scalar_type(),
        .device = device_of(first, options_->device_map)};
    std::vector<std::pair<std::string, Source>> saved;
    for (const size_t i : group) {
      const NamedTensor& item = model[i];
      if (device_of(item, options_->device_map) != target.device) {
        throw ConfigError(
            kWhere,
            fmt::format(
                "device_map puts {} and {} on different devices, but they are tied",
                first.name,
                item.name));
      }
      target.tied.push_back(item.tensor);
      if (const auto found = unused_.find(item.name); found != unused_.end()) {
        saved.emplace_back(*found);
        unused_.erase(found);
      }
    }
    if (saved.empty()) {
      names_.missing.push_back(first.name);
    } else {
      check_ties(saved);
      match(first, saved.front().second, target);
    }
    targets_.push_back(std::move(target));
  }

  LoadedNames finish() {
    for (const auto& [name, source] : unused_) {
      names_.unexpected.push_back(storage::in_quotes(name));
    }
    std::sort(names_.missing.begin(), names_.missing.end());
    std::vector<std::string> faults;
    if (options_->strict && !names_.missing.empty()) {
      faults.push_back("missing: " + joined(names_.missing));
    }
    if (options_->strict && !names_.unexpected.empty()) {
      faults.push_back("unexpected: " + joined(names_.unexpected));
    }
    if (!different_.empty()) {
      faults.push_back("different: " + joined(different_));
    }
    if (!faults.empty()) {
      throw CheckpointError(
          path_, fmt::format("does not match the model; {}", fmt::join(faults, "; ")));
    }
    names_.unexpected.clear();
    for (const auto& [name, source] : unused_) {
      names_.unexpected.push_back(name);
    }
    return names_;
  }

  const std::vector<TargetTensor>& targets() const { return targets_; }
  const std::shared_ptr<const Files>& files() const { return files_; }

 private:
  void check_ties(const std::vector<std::pair<std::string, Source>>& saved) {
    const auto& [name, source] = saved.front();
    for (size_t i = 1; i < saved.size(); ++i) {
      const auto& [other, of_other] = saved[i];
      if (of_other.entry->dtype != source.entry->dtype || of_other.bytes() != source.bytes()) {
        different_.push_back(fmt::format(
            "{} and {} are tied in the model, but were saved with different values", name, other));
      }
    }
  }

  void match(const NamedTensor& here, const Source& source, TargetTensor& target) {
    const storage::TensorEntry& entry = *source.entry;
    const at::ScalarType saved = scalar_type(entry.dtype);
    if (here.tensor.sizes() != entry.shape || !c10::canCast(saved, target.dtype)) {
      different_.push_back(fmt::format(
          "{} is {}[{}], the model has {}[{}]",
          here.name,
          c10::toString(saved),
          fmt::join(entry.shape, ", "),
          c10::toString(target.dtype),
          fmt::join(here.tensor.sizes(), ", ")));
      return;
    }
    if (options_->dtype && at::isFloatingType(saved) && at::isFloatingType(target.dtype)) {
      target.dtype = *options_->dtype;
    }
    target.value = tensor_of(*source.file, entry);
    target.source = source;
  }

  std::string path_;
  const LoadModelOptions* options_;
  std::shared_ptr<const Files> files_;
  Sources unused_;  ///< Saved tensors that no tensor of the model has used; points into the files.
  std::vector<TargetTensor> targets_;
  std::vector<std::string> different_;
  LoadedNames names_;
};

void write(const TargetTensor& target) {
  if (target.source) {
    target.source->file->fetch(*target.source->entry);
  }
  const at::Tensor& first = target.tied.front();
  if (is_on(first, target.device) && first.scalar_type() == target.dtype) {
    if (target.value.defined()) {
      flat::copy_values(first, target.value);
    }
    return;
  }
  const at::Tensor value = target.value.defined() ? target.value : first.detach();
  const at::Tensor moved =
      value.to(target.device, target.dtype, /*non_blocking=*/false, /*copy=*/true);
  for (const at::Tensor& tensor : target.tied) {
    tensor.mutable_grad().reset();
    tensor.set_data(moved);
  }
}

}  // namespace

CheckedWeights check_checkpoint_in_model(
    const NamedTensors& model, const std::filesystem::path& path, const LoadModelOptions& options) {
  if (options.dtype && !at::isFloatingType(*options.dtype)) {
    throw ConfigError(
        kWhere,
        fmt::format("option dtype is not floating point; got {}", c10::toString(*options.dtype)));
  }
  check_device_map(model, options.device_map);
  LoadPlan plan(path, options);
  for (const std::vector<size_t>& group : tied_groups(model)) {
    plan.add(model, group);
  }
  LoadedNames names = plan.finish();
  return {std::move(names), [targets = plan.targets(), files = plan.files()] {
            const c10::AutoGradMode no_grad(false);
            for (const TargetTensor& target : targets) {
              write(target);
            }
          }};
}

LoadedNames load_checkpoint_in_model(
    const NamedTensors& model, const std::filesystem::path& path, const LoadModelOptions& options) {
  const CheckedWeights checked = check_checkpoint_in_model(model, path, options);
  checked.apply();
  return checked.names;
}

}  // namespace lockstep::checkpoint
