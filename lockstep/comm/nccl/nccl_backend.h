// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/nccl/nccl_api.h"
#include "lockstep/comm/transport/device_backend.h"

namespace lockstep::comm {

/// Connects the ranks of `host`, each with its own GPU, over NCCL. Collective. Returns null on all
/// ranks, with the reason in `why`, if any rank cannot join, for instance if two share a GPU.
///
/// - Operations run on a separate stream, in parallel with computation. They begin after earlier
///   work of the current stream.
/// - A thread first compares fingerprints with the other ranks, over a split of `host`, as every
///   transport does. So start() does not wait for other ranks. A mismatch is an error on all ranks,
///   thrown by wait().
/// - wait() blocks until all ranks have started the operation. Then it makes the current stream
/// wait
///   for the result, not the host.
/// - A thread watches running operations. One that fails, or exceeds its timeout, aborts the
///   communicator, so that no work waits for the device forever; the next operation or wait()
///   throws the reason.
/// - Sums and averages of float16 and bfloat16 are rounded at each step of NCCL's algorithm, unlike
///   those of the other transports. The bits depend on the number of ranks and NCCL's choice.
///
/// No send and recv (see with_devices). `group`: its id in the flight record. Cost of an operation:
/// on the thread, an exchange of 128 bytes per rank and a launch. Thread safety: one thread.
///
/// The destructor waits up to a second for other ranks to start its operations, drops those that
/// they have not, and blocks until the others are done or have failed.
std::unique_ptr<DeviceBackend> make_nccl_backend(
    std::shared_ptr<Transport> host,
    at::Device device,
    const NcclApi& api,
    uint64_t group,
    Milliseconds timeout,
    std::string& why);

}  // namespace lockstep::comm
