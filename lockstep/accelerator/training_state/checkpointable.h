// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// The state of a user's object in a checkpoint: small values, and tensors by name. Infinities and
/// NaN, which JSON lacks, are preserved.
///
/// A template, so that only sources that use an ObjectState need <nlohmann/json.hpp>, which takes
/// a second to compile.
template <typename Json>
struct BasicObjectState {
  BasicObjectState() = default;
  // Implicit, so that an object without tensors may return its values alone.
  BasicObjectState(Json the_values, NamedTensors the_tensors = {})  // NOLINT
      : values(std::move(the_values)), tensors(std::move(the_tensors)) {}

  Json values;
  NamedTensors tensors;
};
using ObjectState = BasicObjectState<nlohmann::json>;

/// An object whose state is part of a checkpoint. load_state_dict may take the ObjectState or, for
/// an object without tensors, its values.
template <typename T>
concept Checkpointable = requires(
    T& object, const T& unchanged, const ObjectState& state, const nlohmann::json& values) {
  { unchanged.state_dict() } -> std::convertible_to<ObjectState>;
  requires requires {
    object.load_state_dict(state);
  } || requires {
    object.load_state_dict(values);
  };
};

/// A reference to a Checkpointable of any type.
struct AnyCheckpointable {
  const void* id = nullptr;
  std::function<ObjectState()> state_dict;
  std::function<void(const ObjectState&)> load_state_dict;

  template <typename T>
  requires(
      !std::is_same_v<const T, const AnyCheckpointable> &&
      Checkpointable<T>) explicit AnyCheckpointable(T& object)
      : id(&object),
        state_dict([&object] { return std::as_const(object).state_dict(); }),
        load_state_dict([&object](const auto& state) {
          if constexpr (requires { object.load_state_dict(state); }) {
            object.load_state_dict(state);
          } else {
            object.load_state_dict(state.values);
          }
        }) {}
};

}  // namespace lockstep
