// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hierarchy/host_collectives.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/transport/exchange.h"

namespace lockstep::comm {
namespace {

// From this size on, each rank sends its share between hosts; below, one rank for each host.
constexpr int64_t kMinShareBytes = int64_t{64} << 10U;

// Time that a failed rank waits for the ranks of its host to report the failure.
constexpr Milliseconds kReportTimeout{2000};

// Gloo's error at a timeout names more than that of the waiting caller, so it comes first.
constexpr Milliseconds kGlooGrace{1000};

/// Holds the result of a rank's part between hosts; an empty text if the part succeeded.
struct PartResult {
  int64_t peer = -1;
  std::array<char, 504> text{};
};

bool divides_before_sum(const Collective& c) {
  return c.reduce == ReduceOp::kAvg && c.output.scalar_type() == at::kHalf;
}

/// Returns the reduction within a host; the two functions below complete an average.
ReduceOp within_host(const Collective& c) {
  return c.reduce == ReduceOp::kAvg && !divides_before_sum(c) ? ReduceOp::kSum : c.reduce;
}

ReduceOp across_hosts(const Collective& c) {
  return c.reduce == ReduceOp::kAvg ? ReduceOp::kSum : c.reduce;
}

/// Scales the average over a host's ranks to its part of the average over all ranks.
void scale_partial_average(
    const Collective& c, at::Tensor& partial, int host_ranks, int all_ranks) {
  if (divides_before_sum(c)) {
    partial.mul_(static_cast<double>(host_ranks) / all_ranks);
  }
}

void divide_sum(const Collective& c, at::Tensor& sum, int all_ranks) {
  if (c.reduce == ReduceOp::kAvg && !divides_before_sum(c)) {
    sum.div_(all_ranks);
  }
}

std::vector<int> counterparts_of(const RanksByHost& by_host, int index) {
  std::vector<int> ranks;
  for (int host = 0; host < by_host.hosts(); ++host) {
    ranks.push_back(by_host.ranks_of(host)[by_host.equal() ? static_cast<size_t>(index) : 0]);
  }
  return ranks;
}

}  // namespace

HostCollectives::HostCollectives(const RanksByHost& by_host, HostTransports transports)
    : by_host_(by_host),
      transports_(std::move(transports)),
      host_(by_host.host_of(transports_.all_ranks->rank())),
      index_(by_host.index_of(transports_.all_ranks->rank())),
      host_size_(transports_.local->size()),
      counterparts_(counterparts_of(by_host, index_)) {}

Milliseconds HostCollectives::remaining() const {
  return std::max(
      Milliseconds(1), std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now()));
}

void HostCollectives::run(const Collective& collective, int64_t sequence, Milliseconds timeout) {
  op_ = collective.op;
  deadline_ = Clock::now() + timeout;
  const Fingerprint mine = fingerprint_of(collective, sequence);
  compare_fingerprints(
      collective, transports_.all_ranks->rank(), [&] { return exchange_fingerprints(mine); });
  const at::Tensor& any = collective.output.defined() ? collective.output : collective.input;
  if (any.defined() && any.numel() > 0 && collective.op != Op::kBarrier) {
    perform(collective);
  }  // Else it is done: all ranks have arrived.
}

void HostCollectives::perform(const Collective& c) {
  const bool by_index = by_host_.equal();
  if (c.op == Op::kAllReduce) {
    all_reduce(c);
  } else if (c.op == Op::kBroadcast) {
    broadcast(c);
  } else if (c.op == Op::kReduceScatter && by_index) {
    reduce_scatter(c);
  } else if (c.op == Op::kAllGather && by_index) {
    all_gather(c);
  } else {
    transports_.all_ranks->start(c, remaining())->wait(remaining() + kGlooGrace);
  }
}

std::vector<Fingerprint> HostCollectives::exchange_fingerprints(const Fingerprint& mine) {
  const int64_t bytes = sizeof(Fingerprint);
  const int64_t host_fingerprints = by_host_.largest();
  const at::Tensor host = at::zeros({host_fingerprints * bytes}, at::kByte);
  const at::Tensor world = at::zeros({by_host_.hosts() * host_fingerprints * bytes}, at::kByte);
  on_host(
      {.op = Op::kAllGather,
       .input = bytes_of_value(mine),
       .output = host.narrow(0, 0, host_size_ * bytes)});
  between_hosts(
      is_first_of_host()
          ? std::optional(Collective{.op = Op::kAllGather, .input = host, .output = world})
          : std::nullopt);
  on_host({.op = Op::kBroadcast, .output = world});
  const auto fingerprints = values_in<Fingerprint>(world);
  std::vector<Fingerprint> by_rank;
  for (int rank = 0; rank < by_host_.size(); ++rank) {
    const int64_t index = by_host_.host_of(rank) * host_fingerprints + by_host_.index_of(rank);
    by_rank.push_back(fingerprints[static_cast<size_t>(index)]);
  }
  return by_rank;
}

void HostCollectives::all_reduce(const Collective& c) {
  const at::Tensor full = c.output.view({-1});
  const bool shared = by_host_.equal() && static_cast<int64_t>(full.nbytes()) >= kMinShareBytes;
  const int64_t each = shared ? full.numel() / host_size_ : 0;
  const at::Tensor body = full.narrow(0, 0, each * host_size_);
  const at::Tensor rest = full.narrow(0, body.numel(), full.numel() - body.numel());

  // The host's first rank also has the remainder, after its share; that may be everything.
  const int64_t extra = is_first_of_host() ? rest.numel() : 0;
  const bool all_is_rest = each == 0;
  at::Tensor share = all_is_rest ? rest : scratch(each + extra, full.scalar_type());
  if (each > 0) {
    on_host(
        {.op = Op::kReduceScatter,
         .input = body,
         .output = share.narrow(0, 0, each),
         .reduce = within_host(c)});
  }
  if (rest.numel() > 0) {
    on_host({.op = Op::kAllReduce, .output = rest, .reduce = within_host(c)});
  }
  if (extra > 0 && !all_is_rest) {
    share.narrow(0, each, extra).copy_(rest);
  }
  std::optional<Collective> part;
  if (is_first_of_host() || each > 0) {
    scale_partial_average(c, share, host_size_, by_host_.size());
    part = {.op = Op::kAllReduce, .output = share, .reduce = across_hosts(c)};
  }
  between_hosts(part);
  if (part) {
    divide_sum(c, share, by_host_.size());
  }
  if (each > 0) {
    on_host({.op = Op::kAllGather, .input = share.narrow(0, 0, each), .output = body});
  }
  if (extra > 0 && !all_is_rest) {
    rest.copy_(share.narrow(0, each, extra));
  }
  if (rest.numel() > 0) {
    on_host({.op = Op::kBroadcast, .output = rest});
  }
}

void HostCollectives::reduce_scatter(const Collective& c) {
  const at::Tensor input = c.input.view({-1});
  at::Tensor output = c.output.view({-1});
  const int64_t each = output.numel();
  // The sums of this host's ranks for the ranks of this rank's index.
  at::Tensor sums = scratch(each * by_host_.hosts(), output.scalar_type());
  for (int host = 0; host < by_host_.hosts(); ++host) {
    on_host(
        {.op = Op::kReduceScatter,
         .input = rows_of_host(input, host),
         .output = sums.narrow(0, host * each, each),
         .reduce = within_host(c)});
  }
  scale_partial_average(c, sums, host_size_, by_host_.size());
  between_hosts(Collective{
      .op = Op::kReduceScatter, .input = sums, .output = output, .reduce = across_hosts(c)});
  divide_sum(c, output, by_host_.size());
}

void HostCollectives::all_gather(const Collective& c) {
  const at::Tensor input = bytes_of(c.input);
  const at::Tensor output = bytes_of(c.output);
  const int64_t each = input.numel();
  const at::Tensor parts = scratch(each * by_host_.hosts(), at::kByte);
  between_hosts(Collective{.op = Op::kAllGather, .input = input, .output = parts});
  for (int host = 0; host < by_host_.hosts(); ++host) {
    const bool in_place = is_consecutive(host);
    const at::Tensor rows =
        in_place ? rows_of_host(output, host) : at::empty({each * host_size_}, at::kByte);
    on_host({.op = Op::kAllGather, .input = parts.narrow(0, host * each, each), .output = rows});
    if (!in_place) {
      for (int index = 0; index < host_size_; ++index) {
        const int rank = by_host_.ranks_of(host)[static_cast<size_t>(index)];
        output.narrow(0, rank * each, each).copy_(rows.narrow(0, index * each, each));
      }
    }
  }
}

void HostCollectives::broadcast(const Collective& c) {
  const at::Tensor tensor = bytes_of(c.output);
  const int root_host = by_host_.host_of(c.root);
  const int root_index = by_host_.index_of(c.root);
  const int sender_index = by_host_.equal() ? root_index : 0;
  if (host_ == root_host) {
    on_host({.op = Op::kBroadcast, .output = tensor, .root = root_index});
  }
  std::optional<Collective> part;
  if (index_ == sender_index) {
    part = {.op = Op::kBroadcast, .output = tensor, .root = root_host};
  }
  between_hosts(std::move(part));
  if (host_ != root_host) {
    on_host({.op = Op::kBroadcast, .output = tensor, .root = sender_index});
  }
}

void HostCollectives::on_host(Collective part) {
  over(*transports_.local, "on the host of", by_host_.ranks_of(host_), std::move(part));
}

void HostCollectives::between_hosts(std::optional<Collective> part) {
  PartResult mine;
  std::exception_ptr failed;
  if (part) {
    try {
      over(*transports_.cross, "between", counterparts_, std::move(*part));
    } catch (const CommError& error) {
      failed = std::current_exception();
      mine.peer = error.peer();
      without_rank_suffix(error.what()).copy(mine.text.data(), mine.text.size() - 1);
      deadline_ = std::min(deadline_, Clock::now() + kReportTimeout);
    }
  }
  const at::Tensor gathered =
      at::empty({host_size_ * static_cast<int64_t>(sizeof(PartResult))}, at::kByte);
  try {
    on_host({.op = Op::kAllGather, .input = bytes_of_value(mine), .output = gathered});
  } catch (const CommError&) {
    if (!failed) {
      throw;
    }
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
  const auto results = values_in<PartResult>(gathered);
  for (size_t index = 0; index < results.size(); ++index) {
    if (results[index].text[0] != '\0') {
      throw CommError(
          name_of(op_),
          fmt::format(
              "rank {} failed: {}",
              by_host_.ranks_of(host_)[index],
              static_cast<const char*>(results[index].text.data())),
          static_cast<int>(results[index].peer));
    }
  }
}

void HostCollectives::over(
    Transport& transport, const char* where, const std::vector<int>& ranks, Collective part) const {
  const auto start = Clock::now();
  try {
    const bool by_gloo = &transport != transports_.local.get();
    transport.start(std::move(part), remaining())
        ->wait(remaining() + (by_gloo ? kGlooGrace : Milliseconds(0)));
  } catch (const CommError& error) {
    // The error has their indices in `ranks`.
    const bool known = error.peer() >= 0 && error.peer() < static_cast<int>(ranks.size());
    throw CommError(
        name_of(op_),
        fmt::format(
            "{} ranks {} (from here on numbered from 0, in this order): {}",
            where,
            fmt::join(ranks, ", "),
            without_rank_suffix(error.what())),
        known ? ranks[static_cast<size_t>(error.peer())] : -1,
        std::chrono::duration<double>(Clock::now() - start).count());
  }
}

bool HostCollectives::is_consecutive(int host) const {
  const std::vector<int>& ranks = by_host_.ranks_of(host);
  return ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
}

at::Tensor HostCollectives::rows_of_host(const at::Tensor& rows, int host) const {
  const std::vector<int>& ranks = by_host_.ranks_of(host);
  const int64_t each = rows.numel() / by_host_.size();
  if (is_consecutive(host)) {
    return rows.narrow(0, ranks.front() * each, each * host_size_);
  }
  std::vector<at::Tensor> parts;
  for (const int rank : ranks) {
    parts.push_back(rows.narrow(0, rank * each, each));
  }
  return at::cat(parts);
}

at::Tensor HostCollectives::scratch(int64_t count, at::ScalarType dtype) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
  if (!scratch_.defined() || scratch_.numel() < bytes) {
    scratch_ = at::Tensor();  // Frees its memory, which the new one may need.
    scratch_ = transports_.local->allocate(bytes);
  }
  return scratch_.narrow(0, 0, bytes).view(dtype);
}

}  // namespace lockstep::comm
