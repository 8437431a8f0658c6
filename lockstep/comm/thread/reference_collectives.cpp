// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/thread/reference_collectives.h"

#include <ATen/Functions.h>

namespace lockstep::comm {
namespace {

at::ScalarType accumulate_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

/// Returns part `rank` of `ranks` equal parts along dimension 0.
at::Tensor part(const at::Tensor& full, int rank, int ranks) {
  const int64_t rows = full.size(0) / ranks;
  return full.narrow(0, rank * rows, rows);
}

std::vector<at::Tensor> all(
    const std::vector<Collective>& by_rank, at::Tensor Collective::*member) {
  std::vector<at::Tensor> tensors;
  for (const Collective& each : by_rank) {
    tensors.push_back(each.*member);
  }
  return tensors;
}

}  // namespace

at::Tensor reduce_in_order(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const at::ScalarType type = accumulate_type(inputs[0].scalar_type());
  at::Tensor total = inputs[0].to(type, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const at::Tensor next = inputs[i].to(type);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        total.add_(next);
        break;
      case ReduceOp::kMin:
        total = at::minimum(total, next);
        break;
      case ReduceOp::kMax:
        total = at::maximum(total, next);
        break;
      case ReduceOp::kProduct:
        total.mul_(next);
        break;
    }
  }
  if (op == ReduceOp::kAvg) {
    total.div_(static_cast<double>(inputs.size()));
  }
  return total;
}

void perform_collective(std::vector<Collective>& by_rank) {
  const auto ranks = static_cast<int>(by_rank.size());
  const int root = by_rank[0].root;
  switch (by_rank[0].op) {
    case Op::kAllReduce: {
      const at::Tensor total =
          reduce_in_order(all(by_rank, &Collective::output), by_rank[0].reduce);
      for (Collective& each : by_rank) {
        each.output.copy_(total);
      }
      break;
    }
    case Op::kReduceScatter: {
      const at::Tensor total = reduce_in_order(all(by_rank, &Collective::input), by_rank[0].reduce);
      for (int rank = 0; rank < ranks; ++rank) {
        by_rank[rank].output.copy_(part(total, rank, ranks));
      }
      break;
    }
    case Op::kAllGather:
    case Op::kGather: {
      const at::Tensor full = at::cat(all(by_rank, &Collective::input));
      for (Collective& each : by_rank) {
        if (each.output.defined()) {
          each.output.copy_(full);
        }
      }
      break;
    }
    case Op::kAllToAll:
      for (int to = 0; to < ranks; ++to) {
        for (int from = 0; from < ranks; ++from) {
          part(by_rank[to].output, from, ranks).copy_(part(by_rank[from].input, to, ranks));
        }
      }
      break;
    case Op::kBroadcast:
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank != root) {
          by_rank[rank].output.copy_(by_rank[root].output);
        }
      }
      break;
    case Op::kScatter:
      for (int rank = 0; rank < ranks; ++rank) {
        by_rank[rank].output.copy_(part(by_rank[root].input, rank, ranks));
      }
      break;
    default:
      break;
  }
  for (Collective& each : by_rank) {
    each = {};
  }
}

}  // namespace lockstep::comm
