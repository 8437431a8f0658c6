// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/module_tree.h"

#include <algorithm>
#include <set>

#include "lockstep/base/text/class_name.h"

namespace lockstep {
namespace {

/// Returns the storage of a tensor, and its first byte in it; null without a storage.
std::pair<const void*, int64_t> place_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) {
    return {nullptr, 0};
  }
  return {
      tensor.storage().unsafeGetStorageImpl(),
      tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize())};
}

std::string before_last_dot(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

}  // namespace

ModuleTree::ModuleTree(const internal::NamedClasses& modules, const NamedTensors& parameters) {
  std::map<std::string, size_t> by_path;
  for (const auto& [path, type] : modules) {
    const size_t index = modules_.size();
    Module module{.name = path, .type = plain_class_name(type)};
    if (!path.empty()) {
      module.parent = by_path.at(before_last_dot(path));
      module.name = path.substr(path.rfind('.') + 1);
      module.depth = modules_[module.parent].depth + 1;
    }
    by_path.emplace(path, index);
    modules_.push_back(std::move(module));
  }
  std::vector<std::set<const void*>> held(modules_.size());
  for (const NamedTensor& item : parameters) {
    const size_t owner = by_path.at(before_last_dot(item.name));
    tensors_.emplace(item.tensor.unsafeGetTensorImpl(), owner);
    const auto place = place_of(item.tensor);
    if (place.first != nullptr && item.tensor.numel() > 0) {
      ranges_.emplace(
          place, Range{place.second + static_cast<int64_t>(item.tensor.nbytes()), owner});
    }
    for (size_t module = owner;; module = modules_[module].parent) {
      if (held[module].insert(item.tensor.unsafeGetTensorImpl()).second) {
        modules_[module].parameters += item.tensor.numel();
      }
      if (module == 0) {
        break;
      }
    }
  }
}

std::optional<size_t> ModuleTree::owner_of(const at::Tensor& tensor) const {
  if (!tensor.defined()) {
    return std::nullopt;
  }
  if (const auto found = tensors_.find(tensor.unsafeGetTensorImpl()); found != tensors_.end()) {
    return found->second;
  }
  const auto place = place_of(tensor);
  auto after = ranges_.upper_bound(place);
  if (place.first == nullptr || after == ranges_.begin()) {
    return std::nullopt;
  }
  const auto& [begin, range] = *--after;
  return begin.first == place.first && place.second < range.end ? std::optional(range.module)
                                                                : std::nullopt;
}

std::optional<size_t> ModuleTree::owner_of(c10::ArrayRef<const c10::IValue> inputs) const {
  for (const c10::IValue& input : inputs) {
    if (input.isTensor()) {
      if (const auto owner = owner_of(input.toTensor())) {
        return owner;
      }
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) {
        if (const auto owner = owner_of(tensor)) {
          return owner;
        }
      }
    }
  }
  return std::nullopt;
}

size_t ModuleTree::common_ancestor(size_t one, size_t other) const {
  while (one != other) {
    size_t& deeper = modules_[one].depth > modules_[other].depth ? one : other;
    deeper = modules_[deeper].parent;
  }
  return one;
}

std::vector<ModuleTree::Cost> ModuleTree::costs(
    const std::vector<ModuleEvent>& events, double ms) const {
  std::vector<Cost> all(modules_.size());
  if (all.empty()) {
    return all;
  }
  // [event] The module of the event, or of the next event that has one.
  std::vector<std::optional<size_t>> next(events.size() + 1);
  for (size_t i = events.size(); i-- > 0;) {
    next[i] = events[i].module ? events[i].module : next[i + 1];
  }
  std::optional<size_t> last;
  double at_ms = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const ModuleEvent& event = events[i];
    const size_t between = last && next[i] ? common_ancestor(*last, *next[i]) : 0;
    Cost& cost = all[event.module.value_or(between)];
    cost.macs += event.macs;
    cost.flops += event.flops;
    cost.ms += event.ended_ms - event.began_ms;
    all[between].ms += event.began_ms - at_ms;
    at_ms = event.ended_ms;
    last = event.module ? event.module : last;
  }
  all[0].ms += ms - at_ms;
  for (size_t i = all.size(); i-- > 1;) {
    Cost& parent = all[modules_[i].parent];
    parent.macs += all[i].macs;
    parent.flops += all[i].flops;
    parent.ms += all[i].ms;
  }
  return all;
}

}  // namespace lockstep
