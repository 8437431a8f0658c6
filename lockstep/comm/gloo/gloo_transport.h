// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/world.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// Ranks that are processes, over TCP through c10d's Gloo backend, for tensors on the CPU.
///
/// Each operation runs on a progress thread: first an all-gather of fingerprints, then, if the
/// ranks agree, the operation. Send and recv have threads of their own, so that two ranks may send
/// to each other before they receive. After the first failure the group is dead and says why.
/// All ranks get the same bits, and in every run. reduce_scatter, by an all_to_all, adds in rank
/// order and rounds once; all_reduce is Gloo's, which rounds float16 and bfloat16 at every
/// addition. Throws as `connect` does. `store`: where all ranks of `world` have signed in
/// (rendezvous.h); it is kept.
std::shared_ptr<Transport> make_gloo_transport(
    const WorldSpec& world,
    const c10::intrusive_ptr<c10d::Store>& store,
    Milliseconds join_timeout);

}  // namespace lockstep::comm
