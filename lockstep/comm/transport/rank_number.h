// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Calls `read` every millisecond until it returns the number that `rank` has set, not 0.
/// Throws CommError when `timeout` ends.
uint64_t await_number(int rank, Milliseconds timeout, const std::function<uint64_t()>& read);

}  // namespace lockstep::comm
