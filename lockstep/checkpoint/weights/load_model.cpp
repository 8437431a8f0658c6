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

/// By the names they have here.
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
                "prefix_map gives it the name {}, and {} as well",
                storage::in_quotes(name),
                storage::in_quotes(other->second.entry->name)),
            storage::in_quotes(entry.name));
      }
    }
  }
  return sources;
}

/// Whether `module` is the name, or a module that it lies in.
bool lies_in(std::string_view name, std::string_view module) {
  return module.empty() || name == module ||
         (name.starts_with(module) && name[module.size()] == '.');
}

void check_device(at::Device device) {
  if (device.is_meta()) {
    throw ConfigError(kWhere, "device_map puts weights on meta, which has no memory for them");
  }
  try {
    at::empty({1}, at::TensorOptions().device(device));
  } catch (const c10::Error& error) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "device_map names {}, which cannot be used here: {}",
            device.str(),
            error.what_without_backtrace()));
  }
}

void check_device_map(
    const NamedTensors& model, const std::map<std::string, at::Device>& device_map) {
  for (const auto& [module, device] : device_map) {
    const bool any =
        std::any_of(model.begin(), model.end(), [&, &wanted = module](const NamedTensor& item) {
          return lies_in(item.name, wanted);
        });
    if (!any) {
      throw ConfigError(
          kWhere, fmt::format("device_map names '{}', and the model has no such module", module));
    }
    check_device(device);
  }
}

at::Device device_of(const NamedTensor& item, const std::map<std::string, at::Device>& device_map) {
  if (device_map.empty()) {
    return item.tensor.device();
  }
  const std::pair<const std::string, at::Device>* longest = nullptr;
  for (const auto& place : device_map) {
    if (lies_in(item.name, place.first) &&
        (longest == nullptr || place.first.size() > longest->first.size())) {
      longest = &place;
    }
  }
  if (longest == nullptr) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "device_map has no device for {}; add \"\" for all that it does not name", item.name));
  }
  return longest->second;
}

void check_target(const NamedTensor& item) {
  if (!item.tensor.defined() || item.tensor.layout() != at::kStrided || item.tensor.is_meta()) {
    throw ConfigError(
        kWhere,
        fmt::format(
            "{} has no memory to load into, or is sparse; make the model on a real device",
            item.name));
  }
}

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) {
    text += fmt::format(", and {} more", names.size() - shown);
  }
  return text;
}

/// "cuda" is whichever is the current one: a tensor that is on any is left there.
bool is_on(const at::Tensor& tensor, at::Device device) {
  return device.has_index() ? tensor.device() == device : tensor.device().type() == device.type();
}

/// One tensor of the model, under all of its names.
struct Place {
  std::vector<at::Tensor> tied;
  at::Tensor value;                ///< Undefined: nothing was saved for it.
  std::optional<Source> source{};  ///< Where it lies in the plan's files.
  at::ScalarType dtype;
  at::Device device;
};

class Plan {
 public:
  Plan(const std::filesystem::path& path, const LoadModelOptions& options)
      : path_(path.string()),
        options_(&options),
        files_(std::make_shared<const Files>(storage::open_model_files(path))),
        left_(sources_in(*files_, options.prefix_map)) {}

  void add(const NamedTensors& model, const std::vector<size_t>& group) {
    const NamedTensor& first = model[group.front()];
    check_target(first);
    Place place{
        .tied = {},
        .value = {},
        .dtype = first.tensor.scalar_type(),
        .device = device_of(first, options_->device_map)};
    std::vector<std::pair<std::string, Source>> saved;
    for (const size_t i : group) {
      const NamedTensor& item = model[i];
      if (device_of(item, options_->device_map) != place.device) {
        throw ConfigError(
            kWhere,
            fmt::format("device_map parts {} and {}, which are tied", first.name, item.name));
      }
      place.tied.push_back(item.tensor);
      if (const auto found = left_.find(item.name); found != left_.end()) {
        saved.emplace_back(*found);
        left_.erase(found);
      }
    }
    if (saved.empty()) {
      names_.missing.push_back(first.name);
    } else {
      check_ties(saved);
      take(first, saved.front().second, place);
    }
    places_.push_back(std::move(place));
  }

  LoadedNames finish() {
    for (const auto& [name, source] : left_) {
      names_.unexpected.push_back(storage::in_quotes(name));
    }
    std::sort(names_.missing.begin(), names_.missing.end());
    std::vector<std::string> faults;
    if (options_->strict && !names_.missing.empty()) {
      faults.push_back("missing: " + listed(names_.missing));
    }
    if (options_->strict && !names_.unexpected.empty()) {
      faults.push_back("unexpected: " + listed(names_.unexpected));
    }
    if (!different_.empty()) {
      faults.push_back("different: " + listed(different_));
    }
    if (!faults.empty()) {
      throw CheckpointError(path_, fmt::format("is of another model; {}", fmt::join(faults, "; ")));
    }
    names_.unexpected.clear();
    for (const auto& [name, source] : left_) {
      names_.unexpected.push_back(name);
    }
    return names_;
  }

  const std::vector<Place>& places() const { return places_; }
  const std::shared_ptr<const Files>& files() const { return files_; }

 private:
  void check_ties(const std::vector<std::pair<std::string, Source>>& saved) {
    const auto& [name, source] = saved.front();
    for (size_t i = 1; i < saved.size(); ++i) {
      const auto& [other, of_other] = saved[i];
      if (of_other.entry->dtype != source.entry->dtype || of_other.bytes() != source.bytes()) {
        different_.push_back(
            fmt::format("{} and {} were not saved as the tied ones they are here", name, other));
      }
    }
  }

  void take(const NamedTensor& here, const Source& source, Place& place) {
    const storage::TensorEntry& entry = *source.entry;
    const at::ScalarType saved = scalar_type(entry.dtype);
    if (here.tensor.sizes() != entry.shape || !c10::canCast(saved, place.dtype)) {
      different_.push_back(fmt::format(
          "{} is {}[{}], here {}[{}]",
          here.name,
          c10::toString(saved),
          fmt::join(entry.shape, ", "),
          c10::toString(place.dtype),
          fmt::join(here.tensor.sizes(), ", ")));
      return;
    }
    if (options_->dtype && at::isFloatingType(saved) && at::isFloatingType(place.dtype)) {
      place.dtype = *options_->dtype;
    }
    place.value = tensor_of(*source.file, entry);
    place.source = source;
  }

  std::string path_;
  const LoadModelOptions* options_;
  std::shared_ptr<const Files> files_;
  Sources left_;  ///< What nobody has taken yet; points into the files.
  std::vector<Place> places_;
  std::vector<std::string> different_;
  LoadedNames names_;
};

void put(const Place& place) {
  if (place.source) {
    place.source->file->fetch(*place.source->entry);
  }
  const at::Tensor& first = place.tied.front();
  if (is_on(first, place.device) && first.scalar_type() == place.dtype) {
    if (place.value.defined()) {
      flat::copy_values(first, place.value);
    }
    return;
  }
  const at::Tensor value = place.value.defined() ? place.value : first.detach();
  const at::Tensor moved =
      value.to(place.device, place.dtype, /*non_blocking=*/false, /*copy=*/true);
  for (const at::Tensor& tensor : place.tied) {
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
        fmt::format("option dtype is for floating point; got {}", c10::toString(*options.dtype)));
  }
  check_device_map(model, options.device_map);
  Plan plan(path, options);
  for (const std::vector<size_t>& group : tied_groups(model)) {
    plan.add(model, group);
  }
  LoadedNames names = plan.finish();
  return {std::move(names), [places = plan.places(), files = plan.files()] {
            const c10::AutoGradMode no_grad(false);
            for (const Place& place : places) {
              put(place);
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
