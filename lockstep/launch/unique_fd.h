// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

using lockstep::UniqueFd;

}  // namespace lockstep::launcher
