// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/device/device_backend.h"
#include "lockstep/comm/nccl/nccl_api.h"

namespace lockstep::comm {

/// The ranks of `host`, each with a GPU of its own, over NCCL. Collective. Null, on all ranks, with
/// the reason in `why`, if any of them cannot: two on one GPU, say.
///
/// - Operations run on a stream of their own, beside what computes: they begin when what the
///   current stream had to do at start() is done, and wait() makes the current stream wait, not the
///   host.
/// - What ranks are about to do is compared over `host` first, as everywhere: the host waits there
///   until all ranks have come. What differs is an error on all of them.
/// - A thread looks after what is under way: an operation that fails, or takes longer than its
///   timeout, ends the communicator, so that nobody waits for the device for ever; the next
///   operation or wait() says why.
/// - Sums and averages of float16 and bfloat16 are rounded at each step of NCCL's way, unlike those
///   of the other transports. Which bits come out depends on the number of ranks and NCCL's choice.
///
/// No send and recv (see with_devices). `group`: in the flight record.
/// Cost: an exchange of 128 bytes a rank over `host`, and a launch. Thread safety: one thread.
std::unique_ptr<DeviceBackend> nccl_link(
    std::shared_ptr<Transport> host,
    at::Device device,
    const NcclApi& api,
    uint64_t group,
    Milliseconds timeout,
    std::string& why);

}  // namespace lockstep::comm
