// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// Connects ranks that are threads of one process.
///
/// The last rank to arrive executes an operation for all, reducing in rank order (in float32 for
/// float16 and bfloat16). The result is bit-identical on all ranks and in all runs, and independent
/// of that thread's torch modes (inference, autocast). If the operation fails, all ranks get the
/// error, and no operation may follow. For tests and as the slow reference.
class ThreadHub;

/// Creates `size` connected transports, one for each thread.
std::vector<std::shared_ptr<Transport>> make_thread_transports(int size);

/// Ends every operation of `transport`'s group with a CommError that contains `why`. Call it if a
/// rank has failed and will not arrive. Only for transports of make_thread_transports.
void abort_thread_group(Transport& transport, const std::string& why);

}  // namespace lockstep::comm
