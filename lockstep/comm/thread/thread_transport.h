// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// The place where ranks that are threads of one process meet.
///
/// An operation takes effect when the last rank has come: that rank does it for all, reducing in
/// rank order (in float32 for float16 and bfloat16), so the result is the same bits everywhere and
/// every run, whatever modes of torch (inference, autocast) that rank's thread is in. If it fails,
/// all are told why, and the group is dead. For tests and as the slow reference.
class ThreadHub;

/// `size` transports over one hub; hand one to each thread.
std::vector<std::shared_ptr<Transport>> make_thread_transports(int size);

/// Ends every operation of `transport`'s group with a CommError that says `why`: a rank has failed
/// and will not come. Only for transports of make_thread_transports.
void abort_thread_group(Transport& transport, const std::string& why);

}  // namespace lockstep::comm
