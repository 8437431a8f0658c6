// SPDX-License-Identifier: Apache-2.0
// Intercepts torch's attention on threads within a ContextParallelScope.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/slice.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/attention_interceptor.h"
#include "lockstep/comm/tensor/mode_key.h"
#include "lockstep/context_parallel/sharded_attention.h"

namespace lockstep::context_parallel {
namespace {

using comm::kAttentionKey;

/// Returns the attention of this thread's scope; null if other code has included the key.
std::shared_ptr<ShardedAttention> current() {
  return std::dynamic_pointer_cast<ShardedAttention>(comm::AttentionInterceptor::current());
}

at::Tensor attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  at::Tensor result;
  run_callback([&] {
    const auto sharded = current();
    const c10::impl::ExcludeDispatchKeyGuard own_work(kAttentionKey);
    result = sharded ? sharded->attention(
                           query,
                           key,
                           value,
                           mask.has_value() && mask->defined(),
                           {.is_causal = is_causal,
                            .dropout_p = dropout_p,
                            .scale = scale,
                            .enable_gqa = enable_gqa})
                     : at::scaled_dot_product_attention(
                           query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  });
  return result;
}

at::Tensor softmax(const at::Tensor& scores, int64_t dim, bool half_to_float) {
  run_callback([&] {
    if (const auto sharded = current()) {
      sharded->check_softmax(scores, dim);
    }
  });
  const c10::impl::ExcludeDispatchKeyGuard own_work(kAttentionKey);
  return at::_softmax(scores, dim, half_to_float);
}

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;

at::Tensor arange_with_step(
    const at::Scalar& start,
    const at::Scalar& end,
    const at::Scalar& step,
    Dtype dtype,
    Layout layout,
    Device device,
    std::optional<bool> pin_memory) {
  at::Tensor result;
  run_callback([&] {
    const auto sharded = current();
    const c10::impl::ExcludeDispatchKeyGuard own_work(kAttentionKey);
    result = at::arange(start, end, step, dtype, layout, device, pin_memory);
    if (sharded) {
      result = sharded->arange(result, start, end, step);
    }
  });
  return result;
}

at::Tensor arange_from(
    const at::Scalar& start,
    const at::Scalar& end,
    Dtype dtype,
    Layout layout,
    Device device,
    std::optional<bool> pin_memory) {
  return arange_with_step(start, end, 1, dtype, layout, device, pin_memory);
}

at::Tensor arange(
    const at::Scalar& end,
    Dtype dtype,
    Layout layout,
    Device device,
    std::optional<bool> pin_memory) {
  return arange_with_step(0, end, 1, dtype, layout, device, pin_memory);
}

at::Tensor slice(
    const at::Tensor& self,
    int64_t dim,
    std::optional<c10::SymInt> start,
    std::optional<c10::SymInt> end,
    c10::SymInt step) {
  const auto is = [](const c10::SymInt& given, int64_t expected) {
    return given.maybe_as_int() == expected;
  };
  run_callback([&] {
    const auto sharded = end && is(start.value_or(0), 0) && is(step, 1) ? current() : nullptr;
    if (sharded && end->maybe_as_int()) {
      sharded->check_slice(self, dim, *end->maybe_as_int());
    }
  });
  const c10::impl::ExcludeDispatchKeyGuard own_work(kAttentionKey);
  return at::slice_symint(self, dim, std::move(start), std::move(end), std::move(step));
}

void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  run_callback([&] {
    if (const auto sharded = current()) {
      sharded->check_operation(op.schema().name().c_str());
    }
  });
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kAttentionKey), stack);
}

/// Runs an operation whose kernels call arange for indices that are no positions.
void with_plain_arange(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard own_work(kAttentionKey);
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kAttentionKey), stack);
}

constexpr const char* kWithIndices[] = {
    "argsort", "argsort.stable", "msort", "one_hot", "sort", "sort.stable"};

/// Operations that compute attention, and are not scaled_dot_product_attention.
constexpr const char* kOtherAttention[] = {
    "_efficient_attention_forward",
    "_flash_attention_forward",
    "_native_multi_head_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_transformer_encoder_layer_fwd",
    "_triton_multi_head_attention",
    "_triton_scaled_dot_attention"};

}  // namespace

void install_attention_dispatch() {
  // Installing it when the library is loaded would end the program on an error.
  static const auto* const libraries = [] {
    try {
      auto* made = new std::vector<torch::Library>();
      comm::register_mode_fallthrough();
      auto& kernels =
          made->emplace_back(torch::Library::IMPL, "aten", kAttentionKey, __FILE__, __LINE__);
      kernels.impl("scaled_dot_product_attention", TORCH_FN(attention));
      kernels.impl("_softmax", TORCH_FN(softmax));
      kernels.impl("arange", TORCH_FN(arange));
      kernels.impl("arange.start", TORCH_FN(arange_from));
      kernels.impl("arange.start_step", TORCH_FN(arange_with_step));
      kernels.impl("slice.Tensor", TORCH_FN(slice));
      for (const char* name : kWithIndices) {
        kernels.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_plain_arange>());
      }
      for (const char* name : kOtherAttention) {
        kernels.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
      }
      return made;
    } catch (const c10::Error& error) {
      throw ConfigError(
          "context_parallel",
          fmt::format(
              "a ContextParallelScope needs torch's dispatch key TESTING_ONLY_GenericMode, which "
              "other code in this process uses; run without that code, or call ring_attention or "
              "ulysses_attention in the model: {}",
              error.what_without_backtrace()));
    }
  }();
  static_cast<void>(libraries);
}

}  // namespace lockstep::context_parallel
