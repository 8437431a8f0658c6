// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/config/settings/job_options.h"

namespace lockstep::launcher {

using config::CpuBind;
using config::EnvVariable;
using config::JobOptions;
using config::kDefaultMasterPort;

}  // namespace lockstep::launcher
