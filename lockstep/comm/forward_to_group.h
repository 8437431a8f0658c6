// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// Does on `group` what a Transport over it was asked for, so that one may stand before another.
/// The result is where `collective` wants it, but a gather's, which is what the Pending gives.
Pending forward_to_group(const Collective& collective, Group group);

}  // namespace lockstep::comm
