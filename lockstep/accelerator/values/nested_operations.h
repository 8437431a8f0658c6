// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/data/sample/nested.h"

namespace lockstep {

namespace detail {

template <typename T>
consteval bool only_tensors() {
  using Bare = std::remove_cvref_t<T>;
  using Kind = data::nested::Kind<Bare>;
  if constexpr (std::is_base_of_v<at::TensorBase, Bare>) {
    return true;
  } else if constexpr (Kind::kSequence || Kind::kOptional) {
    return only_tensors<typename Bare::value_type>();
  } else if constexpr (Kind::kMap) {
    return only_tensors<typename Bare::mapped_type>();
  } else if constexpr (Kind::kTuple) {
    return []<size_t... I>(std::index_sequence<I...>) {
      return (only_tensors<std::tuple_element_t<I, Bare>>() && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<Bare>>());
  } else if constexpr (data::StructOfFields<Bare>) {
    return only_tensors<decltype(std::declval<Bare&>().lockstep_fields())>();
  } else {
    return false;
  }
}

}  // namespace detail

/// A value that processes exchange: a nested value (data/sample/nested.h) whose leaves are all
/// tensors.
template <typename T>
concept NestedTensors = detail::only_tensors<T>();

// --- parts of the functions below, for one tensor

/// Returns "Float[2, 3]", without sizes "Float of 2 dimensions"; "undefined".
std::string describe_tensor(const at::Tensor& tensor, bool with_sizes = true);
at::Tensor slice_tensor(const at::Tensor& tensor, int64_t begin, int64_t end);
at::Tensor concatenate_tensors(const std::vector<at::Tensor>& parts, int64_t dim);
at::Tensor fp32_of(const at::Tensor& tensor);
int64_t batch_size_of(const std::vector<at::Tensor>& tensors);

/// Returns rank `rank`'s share of `size` items, [begin, end); the first size % world ranks have one
/// more.
std::pair<int64_t, int64_t> share_of(int64_t size, int rank, int world);
/// Returns how many items the largest share has more than this one; 0 or 1.
int64_t share_padding(int64_t size, int rank, int world);
[[noreturn]] void refuse_unequal_lengths(const char* what, int64_t first, int64_t other);

/// Throws ConfigError on every rank, with each rank's `description`, unless all are equal.
/// Collective.
void check_same_values(Group& group, const char* operation, const std::string& description);

/// Throws ConfigError on every rank, with each rank's number, unless all pass the same number of
/// `tensors`. Collective; costs one all-gather of 8 bytes per rank.
void check_same_count(Group& group, const char* operation, size_t tensors);

// --- nested values

/// Describes the value's structure, keys, dtypes and sizes (or only numbers of dimensions):
/// "{input: Float[8, 3], target: Long[8]}".
template <typename T>
std::string describe_nested(const T& value, bool with_sizes = true) {
  using Bare = std::remove_cvref_t<T>;
  using Kind = data::nested::Kind<Bare>;
  std::string text;
  const auto add = [&](const auto& item, const std::string& name = "") {
    text += (text.empty() ? "" : ", ") + name + describe_nested(item, with_sizes);
  };
  if constexpr (std::is_base_of_v<at::TensorBase, Bare>) {
    return describe_tensor(value, with_sizes);
  } else if constexpr (Kind::kMap) {
    for (const auto& [key, item] : value) {
      if constexpr (std::is_convertible_v<decltype(key), std::string>) {
        add(item, std::string(key) + ": ");
      } else {
        add(item, std::to_string(key) + ": ");
      }
    }
    return "{" + text + "}";
  } else if constexpr (Kind::kSequence) {
    for (const auto& item : value) {
      add(item);
    }
  } else if constexpr (Kind::kOptional) {
    return value ? describe_nested(*value, with_sizes) : "nothing";
  } else if constexpr (Kind::kTuple) {
    std::apply([&](const auto&... items) { (add(items), ...); }, value);
  } else {
    const auto fields = value.lockstep_fields();
    std::apply([&](const auto&... items) { (add(items), ...); }, fields);
  }
  return "[" + text + "]";
}

/// Checks, before an operation on nested values, that all ranks pass the same number of tensors;
/// otherwise ranks with more would wait forever. With `everything`, structure, dtypes and sizes
/// must agree, too. Throws ConfigError on every rank otherwise. Collective.
template <typename T>
void check_same_values(
    Group& group, bool everything, const char* operation, const T& value, bool with_sizes) {
  if (everything) {
    check_same_values(group, operation, describe_nested(value, with_sizes));
  } else if constexpr (!std::is_base_of_v<at::TensorBase, T>) {
    check_same_count(group, operation, data::tensors_of(value).size());
  }
}

/// Returns views of rows [begin, end) of every tensor; rows past a tensor's end are omitted.
template <typename T>
T slice_tensors(const T& value, int64_t begin, int64_t end) {
  return data::map_tensors(
      value, [&](const at::Tensor& tensor) { return slice_tensor(tensor, begin, end); });
}

/// Concatenates the values along `dim`, tensor by tensor. Leaves that are not tensors are taken
/// from the first value. Throws ConfigError for an empty list, or if structures differ.
template <typename T>
T concatenate(const std::vector<T>& values, int64_t dim = 0) {
  std::vector<std::vector<at::Tensor>> parts;
  for (const T& value : values) {
    const std::vector<at::Tensor> tensors = data::tensors_of(value);
    if (!parts.empty() && tensors.size() != parts.size()) {
      refuse_unequal_lengths(
          "concatenate: the numbers of tensors in the values",
          static_cast<int64_t>(parts.size()),
          static_cast<int64_t>(tensors.size()));
    }
    parts.resize(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      parts[i].push_back(tensors[i]);
    }
  }
  if (values.empty()) {
    refuse_unequal_lengths("concatenate: the numbers of values", 1, 0);
  }
  size_t next = 0;
  return data::map_tensors(
      values.front(), [&](const at::Tensor&) { return concatenate_tensors(parts[next++], dim); });
}

/// Returns the size of dimension 0 of the first tensor. Throws ConfigError if no tensor has one.
template <typename T>
int64_t find_batch_size(const T& value) {
  return batch_size_of(data::tensors_of(value));
}

/// Returns fp16 and bf16 tensors as fp32; others unchanged.
template <typename T>
T convert_to_fp32(const T& value) {
  return data::map_tensors(value, [](const at::Tensor& tensor) { return fp32_of(tensor); });
}

/// See Accelerator::split_between_processes.
template <typename Item>
std::vector<Item> split_between_processes(
    const std::vector<Item>& inputs, int rank, int world, bool apply_padding) {
  const auto size = static_cast<int64_t>(inputs.size());
  const auto [begin, end] = share_of(size, rank, world);
  std::vector<Item> share(inputs.begin() + begin, inputs.begin() + end);
  if (apply_padding && size > 0 && share_padding(size, rank, world) > 0) {
    share.push_back(inputs.back());
  }
  return share;
}

at::Tensor split_between_processes(
    const at::Tensor& inputs, int rank, int world, bool apply_padding);

template <typename Key, typename Value>
std::map<Key, Value> split_between_processes(
    const std::map<Key, Value>& inputs, int rank, int world, bool apply_padding) {
  const auto length = [](const Value& value) {
    if constexpr (std::is_base_of_v<at::TensorBase, Value>) {
      return batch_size_of({value});
    } else {
      return static_cast<int64_t>(value.size());
    }
  };
  std::map<Key, Value> shares;
  for (const auto& [key, value] : inputs) {
    if (length(value) != length(inputs.begin()->second)) {
      refuse_unequal_lengths(
          "split_between_processes: the lengths of the map's values",
          length(inputs.begin()->second),
          length(value));
    }
    shares.emplace(key, split_between_processes(value, rank, world, apply_padding));
  }
  return shares;
}

}  // namespace lockstep
