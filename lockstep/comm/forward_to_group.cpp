// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/forward_to_group.h"

namespace lockstep::comm {

Pending forward_to_group(const Collective& collective, Group group) {
  const Collective& it = collective;
  switch (it.op) {
    case Op::kAllReduce:
      return group.all_reduce(it.output, it.reduce);
    case Op::kReduceScatter:
      return group.reduce_scatter_into(it.output, it.input, it.reduce);
    case Op::kAllGather:
      return group.all_gather_into(it.output, it.input);
    case Op::kAllToAll:
      return group.all_to_all_into(it.output, it.input);
    case Op::kBroadcast:
      return group.broadcast(it.output, it.root);
    case Op::kGather:
      return group.gather(it.input, it.root);
    case Op::kScatter:
      return group.scatter(it.output, it.input, it.root);
    case Op::kSend:
      return group.send(it.input, it.root);
    case Op::kRecv:
      return group.recv(it.output, it.root);
    case Op::kBarrier:
      if (const auto refused = refused_op(it)) {
        group.refuse(*refused, it.input);
      } else {
        group.barrier();
      }
      break;
  }
  return Pending(at::Tensor());
}

}  // namespace lockstep::comm
