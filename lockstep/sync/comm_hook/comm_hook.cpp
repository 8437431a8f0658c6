// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/comm_hook/comm_hook.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/sync/comm_hook/all_reduce_hook.h"
#include "lockstep/sync/comm_hook/power_sgd.h"

namespace lockstep {
namespace {

bool is_cast(CommHookType type) {
  return type == CommHookType::kFp16 || type == CommHookType::kBf16;
}

bool is_power_sgd(CommHookType type) {
  return type == CommHookType::kPowerSgd || type == CommHookType::kBatchedPowerSgd;
}

[[noreturn]] void refuse(const std::string& why) {
  throw ConfigError("comm_hook", why);
}

}  // namespace

const char* name_of(CommHookType type) {
  switch (type) {
    case CommHookType::kNone:
      return "none";
    case CommHookType::kFp16:
      return "fp16";
    case CommHookType::kBf16:
      return "bf16";
    case CommHookType::kPowerSgd:
      return "power_sgd";
    case CommHookType::kBatchedPowerSgd:
      return "batched_power_sgd";
  }
  return "unknown";
}

void check_options(const CommHookOptions& options) {
  const PowerSgdOptions& power = options.power_sgd;
  if (options.wrapper != CommHookType::kNone && !is_power_sgd(options.type)) {
    refuse(fmt::format(
        "a wrapper narrows PowerSGD's messages and has no use around another hook; got wrapper {} "
        "over {}; set type to {} instead, or to power_sgd",
        name_of(options.wrapper),
        name_of(options.type),
        is_cast(options.wrapper) ? name_of(options.wrapper) : "fp16 or bf16"));
  }
  if (is_power_sgd(options.wrapper)) {
    refuse(fmt::format(
        "a wrapper is a cast; got {}, expected fp16, bf16 or none", name_of(options.wrapper)));
  }
  if (options.type == CommHookType::kNone && options.use_error_feedback) {
    refuse("without compression there is no error to feed back; leave use_error_feedback unset");
  }
  if (!is_power_sgd(options.type)) {
    if (power != PowerSgdOptions{}) {
      refuse(fmt::format(
          "options of PowerSGD have no effect on {}; set type to power_sgd, or leave them out",
          name_of(options.type)));
    }
    return;
  }
  if (power.matrix_approximation_rank < 1 || power.start_iter < 0 ||
      !(power.min_compression_rate > 0) || !(power.orthogonalization_epsilon >= 0)) {
    refuse(fmt::format(
        "PowerSGD needs a rank of at least 1, start_iter of at least 0, min_compression_rate above "
        "0 and an epsilon of at least 0; got {}, {}, {} and {}",
        power.matrix_approximation_rank,
        power.start_iter,
        power.min_compression_rate,
        power.orthogonalization_epsilon));
  }
}

std::unique_ptr<CommHook> make_comm_hook(
    const CommHookOptions& options,
    Group group,
    const std::vector<flat::GradBucket>& buckets,
    const NamedTensors& parameters) {
  check_options(options);
  if (is_power_sgd(options.type)) {
    return std::make_unique<PowerSgdHook>(options, std::move(group), buckets, parameters);
  }
  return std::make_unique<AllReduceHook>(options, std::move(group), buckets, parameters);
}

}  // namespace lockstep
