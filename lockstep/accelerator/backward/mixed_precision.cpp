// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/mixed_precision.h"

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep::internal {

Autocast MixedPrecision::autocast(const std::optional<AutocastOptions>& options) {
  const AutocastOptions chosen = options.value_or(context_.options.autocast);
  used_ = true;
  const bool mixed = context_.precision != Precision::kNo && chosen.enabled;
  return Autocast(
      context_.device.type(),
      mixed ? autocast_dtype(context_.precision) : at::kBFloat16,
      mixed,
      chosen.cache_enabled);
}

void MixedPrecision::loss_given(const GivenLoss& /*given*/) {
  if (!used_ && context_.precision != Precision::kNo && !warned_) {
    warned_ = true;
    log_warning(fmt::format(
        "mixed_precision is {}, but no forward has run under accelerator.autocast() yet, so the "
        "model computes in its own dtype; run each forward in that scope",
        name_of(context_.precision)));
  }
}

}  // namespace lockstep::internal
