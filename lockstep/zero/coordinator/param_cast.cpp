// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/coordinator/param_cast.h"

#include <fmt/format.h>

#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/sharded_param.h"

namespace lockstep::zero {

bool ParamCast::is_possible(const at::Tensor& source, const at::Tensor& cast) {
  constexpr int64_t kMinElements = 1024;  // Fewer elements take less memory than a ParamCast.
  return cast.numel() >= kMinElements && cast.is_floating_point() &&
         cast.scalar_type() != source.scalar_type() && cast.device() == source.device() &&
         cast.layout() == at::kStrided && cast.is_non_overlapping_and_dense() &&
         cast.storage_offset() == 0 && cast.storage().use_count() == 1 && !source.is_inference();
}

ParamCast::ParamCast(const FlatParamBuffer& from, const at::Tensor& source, const at::Tensor& cast)
    : from_(&from),
      sizes_(source.sizes().vec()),
      strides_(source.strides().vec()),
      offset_(source.storage_offset()),
      version_counter_(source.unsafeGetTensorImpl()->version_counter()),
      version_(version_counter_.current_version()),
      own_strides_(cast.strides().vec()),
      buffer_(
          cast.numel(),
          cast.options(),
          "[zero] autocast cast this tensor from a parameter that ZeRO stage 3 shards, and its "
          "memory was read directly (data_ptr, accessor); clone() it first") {
  buffer_.set_owner(this);
  buffer_.make_memory(cast.storage().set_data_ptr(at::DataPtr(nullptr, cast.device())));
}

at::Tensor ParamCast::replacement_for(at::Tensor cast) const {
  const c10::InferenceMode ordinary(false);
  at::Tensor view = buffer_.view(sizes_, own_strides_);
  if (cast.grad_fn() == nullptr) {
    return view;
  }
  cast.set_data(view);
  return cast;
}

void ParamCast::free_memory() {
  if (buffer_.has_memory() && !written_) {
    buffer_.take_memory();
  }
}

void ParamCast::pin(bool writes) {
  AccessHandler* owner = from_->owner();
  if (owner == nullptr) {
    return;  // It was destroyed: reading the memory is an error.
  }
  owner->pin(/*writes=*/false);
  try {
    if (!buffer_.has_memory()) {
      cast_again();
    }
  } catch (...) {
    owner->unpin(/*writes=*/false);
    throw;
  }
  written_ = written_ || writes;
}

void ParamCast::unpin(bool /*writes*/) noexcept {
  if (AccessHandler* owner = from_->owner()) {
    owner->unpin(/*writes=*/false);
  }
}

void ParamCast::cast_again() {
  if (version_counter_.current_version() != version_) {
    throw ConfigError(
        "zero",
        fmt::format(
            "a parameter has changed since autocast cast it, and ZeRO stage 3 does not keep the "
            "old values; got version {}, expected {}; call backward() before the change, and end "
            "the autocast scope before optimizer.step()",
            version_counter_.current_version(),
            version_));
  }
  const c10::AutoGradMode no_grad(false);
  const c10::impl::ExcludeDispatchKeyGuard own_work(comm::kShardedParamKey);
  buffer_.make_memory();
  at::as_strided(buffer_.values(), sizes_, own_strides_)
      .copy_(at::as_strided(from_->values(), sizes_, strides_, offset_));
}

}  // namespace lockstep::zero
