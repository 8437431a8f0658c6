// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/host/world.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Makes the transport of processes over TCP, with c10d's Gloo backend, for CPU tensors.
///
/// Each operation runs on a progress thread: first an all-gather of fingerprints, then, if the
/// ranks agree, the operation. Send and recv have their own threads, so that two ranks may send to
/// each other before they receive. After the first failure every operation throws its reason.
///
/// Results are bit-identical on all ranks and in all runs. reduce_scatter, by an all_to_all, adds
/// in rank order and rounds once. all_reduce is Gloo's, which rounds float16 and bfloat16 at every
/// addition.
///
/// `store`: the store that all ranks of `world` have joined (rendezvous.h); the transport keeps it.
/// `group`: its id in the flight record.
/// Throws as `connect`.
std::shared_ptr<Transport> make_gloo_transport(
    const WorldSpec& world,
    const c10::intrusive_ptr<c10d::Store>& store,
    uint64_t group,
    Milliseconds join_timeout);

}  // namespace lockstep::comm
