// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Forwards an operation of a Transport to `group`, for transports that wrap another one. The
/// result is written to the tensors of `collective`, except a gather's, which the Pending returns.
Pending forward_to_group(const Collective& collective, Group group);

}  // namespace lockstep::comm
