// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/zero_setup/resolve_zero.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include "lockstep/accelerator/options/fsdp_environment.h"
#include "lockstep/base/error.h"
#include "lockstep/zero_options/check_zero_options.h"

namespace lockstep::internal {
namespace {

/// The source of ZeRO's settings: FSDP's options, which are translated for a host size, or others.
struct RequestedZero {
  std::optional<FsdpPlugin> fsdp;
  ResolvedZero resolved;  ///< Without `fsdp`.
};

RequestedZero requested_zero(const AcceleratorOptions& options, const Environment& environment) {
  const int given =
      (options.zero ? 1 : 0) + (options.fsdp_plugin ? 1 : 0) + (options.deepspeed_plugin ? 1 : 0);
  if (given > 1) {
    throw ConfigError(
        "accelerator",
        "zero, fsdp_plugin and deepspeed_plugin all configure sharding; give only one");
  }
  if (options.fsdp_plugin) {
    return {.fsdp = options.fsdp_plugin, .resolved = {}};
  }
  if (options.deepspeed_plugin) {
    return {
        .fsdp = std::nullopt,
        .resolved = {.plugin = options.deepspeed_plugin->zero(), .not_used = {}}};
  }
  if (options.zero) {
    return {.fsdp = std::nullopt, .resolved = {.plugin = options.zero, .not_used = {}}};
  }
  if (const auto stage = environment.integer("LOCKSTEP_ZERO_STAGE", 0, 3)) {
    RequestedZero requested;
    if (*stage > 0) {
      requested.resolved.plugin = ZeroPlugin{.stage = *stage};
    }
    return requested;
  }
  FsdpEnvironment launched = read_fsdp_environment(environment);
  return {
      .fsdp = std::move(launched.plugin),
      .resolved = {.plugin = std::nullopt, .not_used = std::move(launched.not_used)}};
}

/// Throws ConfigError for options that cannot be combined with ZeRO.
void check_other_options(const AcceleratorOptions& options) {
  if (options.shared_parameters) {
    throw ConfigError(
        "zero",
        "ZeRO cannot be combined with shared_parameters, which already keeps one copy on each "
        "host; turn shared_parameters off, or remove zero and --zero-stage");
  }
  if (options.data_parallel.comm_hook.type != CommHookType::kNone) {
    throw ConfigError(
        "zero",
        fmt::format(
            "ZeRO cannot be combined with the comm hook {}, which compresses all-reduces; remove "
            "the hook, or zero and --zero-stage",
            name_of(options.data_parallel.comm_hook.type)));
  }
}

}  // namespace

ResolvedZero resolve_zero(
    const AcceleratorOptions& options, const Environment& environment, const ZeroFacts& facts) {
  RequestedZero requested = requested_zero(options, environment);
  ResolvedZero resolved = std::move(requested.resolved);
  if (requested.fsdp) {
    resolved.plugin = requested.fsdp->zero(facts.host_size);
  }
  if (resolved.plugin) {
    check_zero_options(*resolved.plugin, facts.processes);
    check_other_options(options);
  }
  return resolved;
}

bool needs_host_size(const AcceleratorOptions& options, const Environment& environment) {
  return requested_zero(options, environment).fsdp.has_value();
}

int uniform_host_size(const WorldSpec& world, Group group) {
  at::Tensor least = at::empty({3}, at::kLong);
  auto* values = least.mutable_data_ptr<int64_t>();
  values[0] = world.local_size;
  values[1] = -world.local_size;
  values[2] = world.rank % world.local_size == world.local_rank ? 1 : 0;
  group.all_reduce(least, ReduceOp::kMin).wait();
  return values[0] == -values[1] && values[2] == 1 ? world.local_size : 0;
}

}  // namespace lockstep::internal
