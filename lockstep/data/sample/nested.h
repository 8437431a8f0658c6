// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

/// Declares the members of a struct that are its nested value, in order:
///
///   struct Sample {
///     at::Tensor image, label;
///     std::string path;
///     LOCKSTEP_FIELDS(image, label, path)
///   };
#define LOCKSTEP_FIELDS(...)      \
  auto lockstep_fields() {        \
    return std::tie(__VA_ARGS__); \
  }                               \
  auto lockstep_fields() const {  \
    return std::tie(__VA_ARGS__); \
  }

namespace lockstep::data {

/// Nested values: tensors, and vectors, arrays, maps, pairs, tuples, optionals and structs (with
/// LOCKSTEP_FIELDS) of nested values. Any other type within one (numbers, strings) is a leaf that
/// stays untouched. Batches, gather, pad and send_to_device use nested values.
///
/// All types are resolved at compile time. The order is that of declaration, and of keys in a map,
/// so it is the same on every rank whose values have the same structure.

template <typename T>
concept StructOfFields = requires(T& value) {
  value.lockstep_fields();
};

namespace nested {

template <typename T>
struct Kind {
  static constexpr bool kSequence = false;
  static constexpr bool kTuple = false;
  static constexpr bool kMap = false;
  static constexpr bool kOptional = false;
};
template <typename T, typename A>
struct Kind<std::vector<T, A>> : Kind<void> {
  static constexpr bool kSequence = true;
};
template <typename T, size_t N>
struct Kind<std::array<T, N>> : Kind<void> {
  static constexpr bool kSequence = true;
};
template <typename K, typename V, typename C, typename A>
struct Kind<std::map<K, V, C, A>> : Kind<void> {
  static constexpr bool kMap = true;
};
template <typename... Ts>
struct Kind<std::tuple<Ts...>> : Kind<void> {
  static constexpr bool kTuple = true;
};
template <typename A, typename B>
struct Kind<std::pair<A, B>> : Kind<void> {
  static constexpr bool kTuple = true;
};
template <typename T>
struct Kind<std::optional<T>> : Kind<void> {
  static constexpr bool kOptional = true;
};

/// Returns whether T contains only tensors, numbers, enums and strings.
template <typename T>
consteval bool has_only_known_types() {
  using Bare = std::remove_cvref_t<T>;
  if constexpr (
      std::is_base_of_v<at::TensorBase, Bare> || std::is_arithmetic_v<Bare> ||
      std::is_enum_v<Bare> || std::is_same_v<Bare, std::string>) {
    return true;
  } else if constexpr (Kind<Bare>::kSequence || Kind<Bare>::kOptional) {
    return has_only_known_types<typename Bare::value_type>();
  } else if constexpr (Kind<Bare>::kMap) {
    return has_only_known_types<typename Bare::key_type>() &&
           has_only_known_types<typename Bare::mapped_type>();
  } else if constexpr (Kind<Bare>::kTuple) {
    return []<size_t... I>(std::index_sequence<I...>) {
      return (has_only_known_types<std::tuple_element_t<I, Bare>>() && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<Bare>>());
  } else if constexpr (StructOfFields<Bare>) {
    return has_only_known_types<decltype(std::declval<Bare&>().lockstep_fields())>();
  } else {
    return false;
  }
}

}  // namespace nested

/// A nested value of only tensors, numbers, enums and strings in the containers above. No tensor
/// can hide in it, so it can be moved to a device or sent to another rank completely.
template <typename T>
concept Transferable = nested::has_only_known_types<T>();

/// Calls `visit(tensor)` for every tensor in `value`, also undefined ones. `visit` may replace it.
template <typename T, typename Visit>
void for_each_tensor(T& value, const Visit& visit) {
  using Bare = std::remove_cv_t<T>;
  if constexpr (std::is_base_of_v<at::TensorBase, Bare>) {
    visit(value);
  } else if constexpr (nested::Kind<Bare>::kSequence) {
    if constexpr (!std::is_arithmetic_v<typename Bare::value_type>) {
      for (auto& item : value) {
        for_each_tensor(item, visit);
      }
    }
  } else if constexpr (nested::Kind<Bare>::kMap) {
    for (auto& item : value) {
      for_each_tensor(item.second, visit);
    }
  } else if constexpr (nested::Kind<Bare>::kTuple) {
    std::apply([&](auto&... items) { (for_each_tensor(items, visit), ...); }, value);
  } else if constexpr (nested::Kind<Bare>::kOptional) {
    if (value) {
      for_each_tensor(*value, visit);
    }
  } else if constexpr (StructOfFields<T>) {
    auto fields = value.lockstep_fields();
    for_each_tensor(fields, visit);
  }
}

/// Returns a copy of `value` in which `change(tensor)` replaces every tensor.
template <typename T, typename Change>
T map_tensors(const T& value, const Change& change) {
  T copy = value;
  for_each_tensor(copy, [&](at::Tensor& tensor) { tensor = change(std::as_const(tensor)); });
  return copy;
}

/// Returns the tensors of `value`, in order.
template <typename T>
std::vector<at::Tensor> tensors_of(const T& value) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

}  // namespace lockstep::data
