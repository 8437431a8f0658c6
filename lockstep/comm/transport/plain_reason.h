// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::comm {

/// Returns what a connection reported, in a clause, from the text of an exception of Gloo or c10d:
/// without paths of their sources, stack frames and advice. Logs the full text at the debug level.
///
/// "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:52100. This may ..."
/// becomes "the connection to 10.0.0.2 was closed", or with its rank, if that is not -1, "the
/// connection to rank 1 at 10.0.0.2 was closed".
std::string plain_reason(const std::string& text, int rank = -1);

}  // namespace lockstep::comm
