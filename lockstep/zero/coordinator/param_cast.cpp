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

bool ParamCast::is_possible(const at::Tensor& source, const at::Tensor& made) {
  constexpr int64_t kWorthPaging = 1024;  // Fewer elements take less than what keeps track of them.
  return made.numel() >= kWorthPaging && made.is_floating_point() &&
         made.scalar_type() != source.scalar_type() && made.device() == source.device() &&
         made.layout() == at::kStrided && made.is_non_overlapping_and_dense() &&
         made.storage_offset() == 0 && made.storage().use_count() == 1 && !source.is_inference();
}

ParamCast::ParamCast(const FlatParamBuffer& from, const at::Tensor& source, const at::Tensor& made)
    : from_(&from),
      sizes_(source.sizes().vec()),
      strides_(source.strides().vec()),
      offset_(source.storage_offset()),
      version_counter_(source.unsafeGetTensorImpl()->version_counter()),
      version_(version_counter_.current_version()),
      own_strides_(made.strides().vec()),
      buffer_(
          made.numel(),
          made.options(),
          "[zero] autocast made this of a parameter of which each rank has a part under ZeRO stage "
          "3, and its memory was read past all operations; clone() it first") {
  buffer_.set_owner(this);
  buffer_.make_memory(made.storage().set_data_ptr(at::DataPtr(nullptr, made.device())));
}

at::Tensor ParamCast::in_the_place_of(at::Tensor made) const {
  const c10::InferenceMode ordinary(false);
  at::Tensor taken = buffer_.view(sizes_, own_strides_);
  if (made.grad_fn() == nullptr) {
    return taken;
  }
  made.set_data(taken);
  return made;
}

void ParamCast::let_go() {
  if (buffer_.has_memory() && !written_) {
    buffer_.take_memory();
  }
}

void ParamCast::pin(bool writes) {
  AccessHandler* owner = from_->owner();
  if (owner == nullptr) {
    return;  // It is gone, and an error says so.
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
            "a parameter was written to, or updated, since autocast cast it, and under ZeRO stage "
            "3 "
            "what it was then is gone; got version {}, expected {}; call backward() before, and "
            "end "
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
