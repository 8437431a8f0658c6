// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/setup/run_context.h"

namespace lockstep::internal {

/// Throws ConfigError that names the first option of the Accelerator in which ranks differ, of
/// those that the numbers or the messages of training depend on. Those of schedules are not among
/// them: each backward that averages compares learning rates. ZeRO's are compared separately, since
/// resolving them may be collective. `needs_host_size`: ZeRO's settings depend on the hosts.
/// Collective; one all_gather of a few bytes.
void expect_equal_options(const RunContext& context, bool needs_host_size);
/// Does the same for ZeRO's resolved options.
void expect_equal_zero(const RunContext& context);

}  // namespace lockstep::internal
