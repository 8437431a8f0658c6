// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/forward_to_group.h"

namespace lockstep::comm {

Pending forward_to_group(const Collective& collective, Group group) {
  switch (collective.op) {
    case Op::kAllReduce:
      return group.all_reduce(collective.output, collective.reduce);
    case Op::kReduceScatter:
      return group.reduce_scatter_into(collective.output, collective.input, collective.reduce);
    case Op::kAllGather:
      return group.all_gather_into(collective.output, collective.input);
    case Op::kAllToAll:
      return group.all_to_all_into(collective.output, collective.input);
    case Op::kBroadcast:
      return group.broadcast(collective.output, collective.root);
    case Op::kGather:
      return group.gather(collective.input, collective.root);
    case Op::kScatter:
      return group.scatter(collective.output, collective.input, collective.root);
    case Op::kSend:
      return group.send(collective.input, collective.root);
    case Op::kRecv:
      return group.recv(collective.output, collective.root);
    case Op::kBarrier:
      if (const auto refused = refused_op(collective)) {
        group.refuse(*refused, collective.input);
      } else {
        group.barrier();
      }
      break;
  }
  return Pending(at::Tensor());
}

}  // namespace lockstep::comm
