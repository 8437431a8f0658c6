// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/zero_setup/low_precision_policy.h"

#include <optional>

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/parameters.h"

namespace lockstep {

zero::LowPrecisionPolicy low_precision_policy(const ZeroPlugin& plugin) {
  const std::optional<at::ScalarType>& sums = plugin.grad_accum_dtype;
  return {
      .fp32_masters = plugin.fp32_masters,
      .fp32_gradients = plugin.stage == 1 && sums == at::kFloat,
      .fp32_comm = plugin.communication_data_type == at::kFloat,
      .rounded_sums = sums && sums != at::kFloat};
}

void check_sums(const ZeroPlugin& plugin, const NamedTensors& parameters) {
  const std::optional<at::ScalarType>& wire = plugin.communication_data_type;
  const bool is_narrow = wire && c10::isReducedFloatingType(*wire);
  for (const NamedTensor& item : trainable(parameters)) {
    if (is_narrow && zero::is_trained_in_16_bits(item.tensor) &&
        item.tensor.scalar_type() != *wire) {
      throw ConfigError(
          "zero",
          fmt::format(
              "communication_data_type must be the gradients' own dtype for 16-bit parameters; got "
              "{2} for {0} ({1}); leave it unset, or convert the model before prepare()",
              item.name,
              c10::toString(item.tensor.scalar_type()),
              c10::toString(*wire)));
    }
  }
  if (wire && !is_narrow && !(wire == at::kFloat && low_precision_policy(plugin).fp32_gradients)) {
    throw ConfigError(
        "zero",
        fmt::format(
            "invalid communication_data_type; got {} in stage {}; expected at::kHalf or "
            "at::kBFloat16 for fp32 gradients, or at::kFloat in stage 1 with "
            "grad_accum_dtype=at::kFloat; otherwise leave it unset",
            c10::toString(*wire),
            plugin.stage));
  }
  if (!plugin.grad_accum_dtype) {
    return;
  }
  const at::ScalarType sums = *plugin.grad_accum_dtype;
  if (!plugin.fp32_masters) {
    throw ConfigError(
        "zero",
        fmt::format(
            "grad_accum_dtype needs fp32_masters, since gradients without masters have the "
            "parameters' dtype; got grad_accum_dtype={} and fp32_masters=false; set fp32_masters, "
            "or leave grad_accum_dtype unset",
            c10::toString(sums)));
  }
  for (const NamedTensor& item : trainable(parameters)) {
    if (sums != at::kFloat && item.tensor.scalar_type() != sums) {
      throw ConfigError(
          "zero",
          fmt::format(
              "gradients of {} ({}) cannot be accumulated in grad_accum_dtype={}; expected "
              "at::kFloat, or the parameters' dtype; leave it unset, or convert the model before "
              "prepare()",
              item.name,
              c10::toString(item.tensor.scalar_type()),
              c10::toString(sums)));
    }
  }
}

}  // namespace lockstep
