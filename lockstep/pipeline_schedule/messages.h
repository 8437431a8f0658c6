// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/pipeline_schedule/pipeline_schedule.h"

namespace lockstep::pipeline_schedule {

/// Returns the computations of compute_actions with the messages between them.
///
/// A rank executes its list from the first action to the last. It starts each message in its place,
/// without waiting. It waits for a receive before the computation that uses it, and for a send when
/// it needs the memory of the tensor, at the latest after the last action.
///
/// Two ranks start their messages to each other in the same order, so each receive meets the
/// message that its sender means (Group receives the messages of a rank in the order of their
/// sending). All messages also follow one order of the whole pipeline. Therefore no rank waits
/// forever, even if every message blocks both ranks until it is complete (a rendezvous, such as
/// NCCL's large messages). If sends do not block, ranks of equal speed lose no time: a receive is
/// placed behind the computations that begin before its message is sent.
///
/// A schedule on one rank has no messages: its chunks pass tensors directly. Throws ConfigError for
/// lists that simulate refuses. Cost: O(n log n) for n actions.
ActionLists add_messages(const ActionLists& computations);

/// Returns the rank that a message action sends to, or receives from.
int peer_of(const Action& message, int rank, int ranks);

}  // namespace lockstep::pipeline_schedule
