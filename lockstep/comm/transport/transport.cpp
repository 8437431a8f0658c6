// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/transport/transport.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"
#include "lockstep/watch/operation.h"

namespace lockstep {

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "?";
}

namespace comm {

const char* name_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllGather:
      return "all_gather";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kGather:
      return "gather";
    case Op::kScatter:
      return "scatter";
    case Op::kSend:
      return "send";
    case Op::kRecv:
      return "recv";
    case Op::kBarrier:
      return "barrier";
  }
  return "?";
}

namespace {

bool reduces(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter;
}

bool has_root(Op op) {
  return op == Op::kBroadcast || op == Op::kGather || op == Op::kScatter;
}

/// Returns the tensor whose shape must be equal on all ranks.
const at::Tensor& shared_tensor(const Collective& collective) {
  switch (collective.op) {
    case Op::kAllReduce:
    case Op::kBroadcast:
    case Op::kRecv:
    case Op::kScatter:
      return collective.output;
    default:
      return collective.input;
  }
}

/// The root of a question, which is a barrier.
constexpr int kQuestionRoot = -1;

bool is_question(const Fingerprint& print) {
  return print.op == static_cast<int64_t>(Op::kBarrier) && print.root == kQuestionRoot;
}

std::string tensor_text(const Fingerprint& fingerprint) {
  if (fingerprint.dims < 0) {
    return "";
  }
  const auto shown =
      std::min<size_t>(static_cast<size_t>(fingerprint.dims), fingerprint.sizes.size());
  const std::vector<int64_t> sizes(
      fingerprint.sizes.begin(), fingerprint.sizes.begin() + static_cast<ptrdiff_t>(shown));
  std::string dtype = c10::toString(static_cast<c10::ScalarType>(fingerprint.dtype));
  std::transform(dtype.begin(), dtype.end(), dtype.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return fmt::format(" of {}[{}]", dtype, fmt::join(sizes, ", "));
}

}  // namespace

bool Fingerprint::operator==(const Fingerprint& other) const {
  const auto compared = [](const Fingerprint& print) {
    return std::tie(
        print.sequence, print.op, print.reduce, print.root, print.dtype, print.dims, print.sizes);
  };
  return compared(*this) == compared(other);
}

std::string Fingerprint::describe() const {
  const auto kind = static_cast<Op>(op);
  if (kind == Op::kBarrier && root > 0) {
    const std::string tensor = tensor_text(*this);
    return fmt::format(
        "{} with an invalid argument{}{} (see the error of that rank)",
        name_of(static_cast<Op>(root - 1)),
        tensor.empty() ? "" : ", a tensor",
        tensor);
  }
  std::string argument;
  if (reduces(kind)) {
    argument = fmt::format("({})", lockstep::name_of(static_cast<ReduceOp>(reduce)));
  } else if (has_root(kind)) {
    argument = fmt::format("(root {})", root);
  } else if (root != 0 && kind != Op::kBarrier) {
    argument = fmt::format("(tag {})", root);
  }
  return name_of(kind) + argument + tensor_text(*this);
}

Collective refusal_of(Op op, const at::Tensor& argument) {
  Collective refusal{.op = Op::kBarrier, .root = static_cast<int>(op) + 1};
  if (argument.defined()) {
    // Only shape and dtype matter, so one element is enough.
    refusal.input =
        at::empty({}, at::TensorOptions(argument.scalar_type())).expand(argument.sizes());
  }
  return refusal;
}

std::optional<Op> refused_op(const Collective& collective) {
  if (collective.op != Op::kBarrier || collective.root <= 0) {
    return std::nullopt;
  }
  return static_cast<Op>(collective.root - 1);
}

Collective question_of(const at::Tensor& answer) {
  return {.op = Op::kBarrier, .output = answer, .root = kQuestionRoot};
}

bool is_question(const Collective& collective) {
  return collective.op == Op::kBarrier && collective.root == kQuestionRoot;
}

void deny(const Collective& question) {
  *static_cast<std::byte*>(question.output.mutable_data_ptr()) = std::byte{0};
}

Fingerprint fingerprint_of(const Collective& collective, int64_t sequence) {
  Fingerprint fingerprint;
  fingerprint.sequence = sequence;
  fingerprint.call =
      watch::short_text<fingerprint.call.size()>(collective.call == nullptr ? "" : collective.call);
  fingerprint.op = static_cast<int64_t>(collective.op);
  fingerprint.reduce = reduces(collective.op) ? static_cast<int64_t>(collective.reduce) : 0;
  const bool is_barrier = collective.op == Op::kBarrier;  // Refusals and questions have a root.
  fingerprint.root = has_root(collective.op) || is_barrier ? collective.root : collective.tag;
  const at::Tensor& tensor = shared_tensor(collective);
  if (tensor.defined()) {
    fingerprint.dtype = static_cast<int64_t>(tensor.scalar_type());
    fingerprint.dims = tensor.dim();
    fingerprint.sizes.fill(1);
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      const auto index = std::min<size_t>(static_cast<size_t>(i), fingerprint.sizes.size() - 1);
      fingerprint.sizes[index] *= tensor.size(i);
    }
  }
  return fingerprint;
}

std::optional<std::string> mismatch(
    const Fingerprint& mine, int my_rank, const Fingerprint& theirs, int their_rank) {
  const auto send = static_cast<int64_t>(Op::kSend);
  const auto recv = static_cast<int64_t>(Op::kRecv);
  const bool paired =
      (mine.op == send && theirs.op == recv) || (mine.op == recv && theirs.op == send);
  if (paired && mine.root == theirs.root && mine.dtype == theirs.dtype &&
      mine.dims == theirs.dims && mine.sizes == theirs.sizes) {
    return std::nullopt;
  }
  return fmt::format(
      "the two ranks call different operations; rank {} calls {}, rank {} calls {}",
      my_rank,
      mine.describe(),
      their_rank,
      theirs.describe());
}

std::optional<std::string> mismatch(const std::vector<Fingerprint>& by_rank) {
  if (std::all_of(by_rank.begin(), by_rank.end(), [&](const Fingerprint& p) {
        return p == by_rank.front();
      })) {
    return std::nullopt;
  }
  std::vector<std::pair<std::string, std::vector<int>>> sides;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const Fingerprint& print = by_rank[rank];
    const std::string_view call = watch::text_of(print.call);
    const std::string text =
        call.empty()
            ? fmt::format("{} as operation {}", print.describe(), print.sequence)
            : fmt::format("{} ({} as operation {})", call, print.describe(), print.sequence);
    auto side =
        std::find_if(sides.begin(), sides.end(), [&](const auto& s) { return s.first == text; });
    if (side == sides.end()) {
      side = sides.insert(sides.end(), {text, {}});
    }
    side->second.push_back(static_cast<int>(rank));
  }
  std::string all;
  for (const auto& [text, ranks] : sides) {
    all += fmt::format(
        "{}{} call{} {}",
        all.empty() ? "" : ", ",
        ranks_text(ranks),
        ranks.size() > 1 ? "" : "s",
        text);
  }
  return "the ranks call different operations; " + all +
         "; every rank must start the same operations in the same order";
}

bool asks_alone(const std::vector<Fingerprint>& by_rank) {
  const auto others = by_rank.begin() + 1;
  return is_question(by_rank.front()) && others != by_rank.end() && !is_question(*others) &&
         others->sequence == by_rank.front().sequence &&
         std::all_of(others, by_rank.end(), [&](const Fingerprint& p) { return p == *others; });
}

void compare_fingerprints(
    const Collective& mine, int rank, c10::function_ref<std::vector<Fingerprint>()> exchange) {
  std::vector<Fingerprint> by_rank = exchange();
  while (asks_alone(by_rank)) {
    if (rank == 0) {
      deny(mine);
      return;
    }
    by_rank = exchange();
  }
  if (const auto sides = mismatch(by_rank)) {
    throw CommError(name_of(mine.op), *sides);
  }
}

void Transport::set_number(uint64_t /*number*/) {
  throw Error("set_number", fmt::format("a group over {} keeps no numbers", name()));
}

uint64_t Transport::number_of(int /*rank*/, Milliseconds /*timeout*/) {
  throw Error("number_of", fmt::format("a group over {} keeps no numbers", name()));
}

NextMessage Transport::next_message(int /*from*/, int /*tag*/) {
  throw Error("recv", fmt::format("a group over {} receives from a named rank only", name()));
}

at::Tensor Transport::allocate(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte));
}

at::Tensor Transport::allocate_shared(int64_t /*bytes*/, Milliseconds /*timeout*/) {
  return {};
}

}  // namespace comm
}  // namespace lockstep
