// SPDX-License-Identifier: Apache-2.0
// Intercepts torch's operations on views of a FlatParamBuffer, and on tensors within an
// InitInterceptScope.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"
#include "lockstep/comm/tensor/value_use.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"
#include "lockstep/zero/coordinator/param_cast.h"

namespace lockstep::zero {
namespace {

using comm::kShardedParamKey;

/// Pins the buffers that an operation uses, until the operation is done.
class Pins {
 public:
  Pins() = default;
  ~Pins() {
    for (const Pin& pin : pins_) {
      pin.owner->unpin(pin.writes);
    }
  }
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  void add(const c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      add(value.toTensor(), writes);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        add(tensor, writes);
      }
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) {
          add(item.toTensor(), writes);
        }
      }
    }
  }

 private:
  void add(const at::Tensor& tensor, bool writes) {
    FlatParamBuffer* buffer = FlatParamBuffer::find(tensor);
    if (buffer == nullptr || buffer->owner() == nullptr) {
      return;
    }
    AccessHandler* owner = buffer->owner();
    const bool is_pinned = std::any_of(pins_.begin(), pins_.end(), [&](const Pin& pin) {
      return pin.owner == owner && (pin.writes || !writes);
    });
    if (!is_pinned) {
      owner->pin(writes);
      pins_.push_back({owner, writes});
    }
  }

  struct Pin {
    AccessHandler* owner;
    bool writes;
  };
  c10::SmallVector<Pin, 4> pins_;
};

thread_local InitInterceptor* g_interceptor = nullptr;

/// Nesting depth of this thread's operations.
thread_local int g_depth = 0;

class NestingScope {
 public:
  NestingScope() { ++g_depth; }
  ~NestingScope() { --g_depth; }
  NestingScope(const NestingScope&) = delete;
  NestingScope& operator=(const NestingScope&) = delete;
};

/// Offers the result of an operation to the interceptor.
void offer(const c10::FunctionSchema& schema, torch::jit::Stack* stack) {
  c10::IValue& result = stack->back();
  if (schema.returns().size() != 1 || schema.returns()[0].alias_info() != nullptr ||
      !result.isTensor() || !result.toTensor().defined() ||
      comm::is_sharded_param(result.toTensor()) || result.toTensor().grad_fn() != nullptr) {
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard own_work(kShardedParamKey);
  result = g_interceptor->take(
      result.toTensor(), !std::string_view(schema.name()).starts_with("aten::empty"));
}

/// RAII scope: if `pauses`, temporary tensors of an operation are not offered.
class PauseInterception {
 public:
  explicit PauseInterception(bool pauses) : previous_(g_interceptor) {
    g_interceptor = pauses ? nullptr : previous_;
  }
  ~PauseInterception() { g_interceptor = previous_; }
  PauseInterception(const PauseInterception&) = delete;
  PauseInterception& operator=(const PauseInterception&) = delete;

 private:
  InitInterceptor* previous_;
};

/// Returns whether an operation returns its argument, so that all tensors it creates are temporary.
bool only_writes(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
        return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      });
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
        return argument.type()->str().find("Tensor") != std::string::npos;
      });
}

/// True while autocast is active in a calling operation. Autocast is off while it casts arguments.
thread_local bool g_autocasts = false;

class AutocastScope {
 public:
  explicit AutocastScope(bool autocasts) : previous_(g_autocasts) {
    g_autocasts = g_autocasts || autocasts;
  }
  ~AutocastScope() { g_autocasts = previous_; }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool previous_;
};

/// Makes `result`, which autocast has cast from `source`, a ParamCast.
void manage_cast(const at::Tensor& source, c10::IValue& result) {
  FlatParamBuffer* buffer = FlatParamBuffer::find(source);
  if (buffer == nullptr || buffer->owner() == nullptr || !buffer->has_memory() ||
      !result.isTensor()) {
    return;
  }
  at::Tensor made = std::move(result).toTensor();
  if (ParamCast::is_possible(source, made)) {
    const c10::impl::ExcludeDispatchKeyGuard own_work(kShardedParamKey);
    auto cast = std::make_unique<ParamCast>(*buffer, source, made);
    made = cast->replacement_for(std::move(made));
    buffer->keep(std::move(cast));
  }
  result = std::move(made);
}

bool absorbs_zero(const at::Tensor& tensor) {
  AccessHandler* owner = FlatParamBuffer::owner_of(tensor);
  return owner != nullptr && owner->absorb_zero();
}

/// Runs zero_ and _foreach_zero_ of tensors whose owners absorb it. Returns whether it is done.
bool zero_without_memory(const c10::FunctionSchema& schema, torch::jit::Stack* stack) {
  if (schema.name() == "aten::zero_") {
    return absorbs_zero(stack->back().toTensor());  // It is the result, too.
  }
  if (schema.name() != "aten::_foreach_zero_") {
    return false;
  }
  const std::vector<at::Tensor> tensors = stack->back().toTensorVector();
  stack->pop_back();
  for (const at::Tensor& tensor : tensors) {
    if (!absorbs_zero(tensor)) {
      tensor.zero_();
    }
  }
  return true;
}

void unshard_arguments(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (zero_without_memory(schema, stack)) {
    return;
  }
  const bool autocasts = !(keys & c10::autocast_dispatch_keyset).empty();
  at::Tensor to_cast;
  Pins pins;  // Until the result is managed: its source must stay unsharded until then.
  if (comm::uses_values(schema)) {
    const c10::impl::ExcludeDispatchKeyGuard own_work(kShardedParamKey);
    const size_t count = schema.arguments().size();
    for (size_t i = 0; i < count; ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      pins.add((*stack)[stack->size() - count + i], alias != nullptr && alias->isWrite());
    }
    if (g_autocasts && !autocasts && g_interceptor == nullptr &&
        schema.name() == "aten::_to_copy") {
      to_cast = (*stack)[stack->size() - count].toTensor();
    }
  }
  {
    const NestingScope nesting;
    const PauseInterception temporary(g_interceptor != nullptr && only_writes(schema));
    const AutocastScope autocast(autocasts);
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kShardedParamKey), stack);
  }
  if (to_cast.defined()) {
    manage_cast(to_cast, stack->back());
  }
  if (g_interceptor != nullptr && (g_depth == 0 || !takes_tensors(schema))) {
    offer(schema, stack);
  }
}

void unshard_fallback(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  run_callback([&] { unshard_arguments(op, keys, stack); });
}

}  // namespace

void install_unshard_dispatch() {
  // Installing it when the library is loaded would end the program on an error.
  static torch::Library* const library = [] {
    try {
      auto* made =
          new torch::Library(torch::Library::IMPL, "_", kShardedParamKey, __FILE__, __LINE__);
      made->fallback(torch::CppFunction::makeFromBoxedFunction<&unshard_fallback>());
      return made;
    } catch (const c10::Error& error) {
      throw ConfigError(
          "zero",
          fmt::format(
              "ZeRO needs torch's dispatch key DeferredInit, which other code in this process uses "
              "(torchdistx?); run without that code, or without ZeRO: {}",
              error.what_without_backtrace()));
    }
  }();
  static_cast<void>(library);
}

InitInterceptScope::InitInterceptScope(InitInterceptor& interceptor) {
  if (g_interceptor != nullptr) {
    throw ConfigError(
        "zero_init",
        "called within another zero_init, which shards the tensors that are created here, too; "
        "create this model without a zero_init of its own");
  }
  install_unshard_dispatch();
  g_interceptor = &interceptor;
  c10::impl::tls_set_dispatch_key_included(kShardedParamKey, true);
}

InitInterceptScope::~InitInterceptScope() {
  c10::impl::tls_set_dispatch_key_included(kShardedParamKey, false);
  g_interceptor = nullptr;
}

}  // namespace lockstep::zero
