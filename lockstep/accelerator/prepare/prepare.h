// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/accelerator/zero_setup/zero_units.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/expert_parallel/model_experts.h"

namespace lockstep {

/// Concepts for the arguments of `Accelerator::prepare`, by the members of a type: this header does
/// not include torch::nn, whose headers take seconds to compile.

/// A module holder (TORCH_MODULE) or a shared_ptr to a module.
template <typename T>
concept ModuleHandle = requires(T handle) {
  handle->named_parameters();
  handle->named_buffers();
  handle.get();
};

template <typename T>
concept OptimizerHandle = std::is_base_of_v<torch::optim::Optimizer, T> || requires(T handle) {
  requires std::is_base_of_v<torch::optim::Optimizer, typename T::element_type>;
};

template <typename T>
concept LoaderHandle = requires(T loader) {
  { loader.core() } -> std::convertible_to<std::shared_ptr<data::LoaderCore>>;
};

/// The return type of torch::data::make_data_loader.
template <typename T>
concept TorchLoaderHandle = requires(T loader) {
  loader->begin();
  loader->join();
  loader->options();
  loader.release();
};

template <typename T>
consteval void refuse_torch_loader() {
  static_assert(
      !TorchLoaderHandle<T>,
      "prepare does not accept torch's DataLoader, which supports neither ranks nor checkpoints; "
      "use data::Loader(data::from_torch(dataset), {.batch_size = ...})");
}

/// Returns another handle of a prepared object that keeps its type.
template <typename Object>
auto prepared_itself(Object&& object) {
  using Type = std::remove_cvref_t<Object>;
  if constexpr (TorchLoaderHandle<Type>) {
    return Type(std::forward<Object>(object).release());  // Refused by refuse_torch_loader.
  } else {
    return Type(object);
  }
}

template <typename Module>
NamedTensors parameters_of(Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) {
    all.push_back({item.key(), item.value()});
  }
  return all;
}

template <typename Module>
NamedTensors buffers_of(Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_buffers()) {
    all.push_back({item.key(), item.value()});
  }
  return all;
}

/// Returns the experts of a module that processes may divide.
template <typename Module>
expert_parallel::ModelExperts experts_of_module(const Module& module) {
  if constexpr (std::is_convertible_v<const Module&, const torch::nn::Module&>) {
    return expert_parallel::experts_of(module);
  } else {
    return {};
  }
}

/// Returns the parameters, with or without frozen ones, then the buffers.
template <typename Module>
NamedTensors tensors_of_module(Module& module, bool with_frozen = true) {
  NamedTensors all = parameters_of(module);
  if (!with_frozen) {
    std::erase_if(all, [](const NamedTensor& item) { return !item.tensor.requires_grad(); });
  }
  for (NamedTensor& buffer : buffers_of(module)) {
    all.push_back(std::move(buffer));
  }
  return all;
}

/// Returns the tensors of a module; none of another object.
template <typename Object>
NamedTensors tensors_of_built(const Object& object) {
  if constexpr (ModuleHandle<Object>) {
    return tensors_of_module(*object);
  } else {
    return {};
  }
}

template <typename Module>
internal::NamedClasses classes_of(Module& module) {
  internal::NamedClasses all;
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    all.push_back({item.key(), item.value()->name()});
  }
  return all;
}

/// Sets the evaluation mode of a module, and returns a function that restores the modes.
template <typename Module>
std::function<void()> set_evaluation_mode(Module& module) {
  const auto inner = module.modules(/*include_self=*/false);
  std::vector<std::pair<std::decay_t<decltype(inner.front())>, bool>> modes;
  for (const auto& each : inner) {
    modes.emplace_back(each, each->is_training());
  }
  const bool own_mode = module.is_training();
  module.eval();
  return [modes, own_mode, &module] {
    module.train(own_mode);
    for (const auto& [each, mode] : modes) {  // A module sets those within it, which come later.
      each->train(mode);
    }
  };
}

template <typename Handle>
std::shared_ptr<torch::optim::Optimizer> shared_optimizer(Handle&& handle) {
  using Type = std::remove_cvref_t<Handle>;
  if constexpr (!std::is_base_of_v<torch::optim::Optimizer, Type>) {
    return handle;
  } else if constexpr (std::is_lvalue_reference_v<Handle>) {
    return std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &handle);
  } else {
    return std::make_shared<Type>(std::forward<Handle>(handle));
  }
}

/// An optimizer in the form in which it was passed to prepare().
struct GivenOptimizer {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  /// Saves and loads the state of an optimizer whose class has state_dict() and load_state_dict();
  /// a reference to it.
  std::optional<AnyCheckpointable> own_state = std::nullopt;
};

template <typename Handle>
GivenOptimizer given_optimizer(Handle&& handle) {
  GivenOptimizer given{.optimizer = shared_optimizer(std::forward<Handle>(handle))};
  using Class = std::remove_cvref_t<Handle>;
  if constexpr (Checkpointable<Class>) {
    given.own_state.emplace(static_cast<Class&>(*given.optimizer));
  } else if constexpr (requires { requires Checkpointable<typename Class::element_type>; }) {
    given.own_state.emplace(static_cast<typename Class::element_type&>(*given.optimizer));
  }
  return given;
}

/// Returns an empty holder or null pointer, to replace a freed object.
template <typename Handle>
Handle empty_like(const Handle&) {
  if constexpr (std::is_constructible_v<Handle, std::nullptr_t>) {
    return Handle(nullptr);
  } else {
    return Handle();
  }
}

}  // namespace lockstep
