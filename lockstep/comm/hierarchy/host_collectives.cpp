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

// From here on the shares are worth a message of each rank instead of one of each host.
constexpr int64_t kSharedBytes = int64_t{64} << 10U;

// How long a rank that failed waits for those of its host, to tell them.
constexpr Milliseconds kPatience{2000};

// Gloo's own word on a timeout is better than that of whoever waits for it.
constexpr Milliseconds kSlack{1000};

/// How a rank's part between hosts went: nothing to say if well.
struct Word {
  int64_t peer = -1;
  std::array<char, 504> text{};
};

bool divides_early(const Collective& c) {
  return c.reduce == ReduceOp::kAvg && c.output.scalar_type() == at::kHalf;
}

/// What ranks of a host do of `c.reduce`; the rest of an average is done by the two below.
ReduceOp within_host(const Collective& c) {
  return c.reduce == ReduceOp::kAvg && !divides_early(c) ? ReduceOp::kSum : c.reduce;
}

ReduceOp over_hosts(const Collective& c) {
  return c.reduce == ReduceOp::kAvg ? ReduceOp::kSum : c.reduce;
}

/// Of the average of `here` of `all` ranks, what it adds to that of all.
void weigh(const Collective& c, at::Tensor& partial, int here, int all) {
  if (divides_early(c)) {
    partial.mul_(static_cast<double>(here) / all);
  }
}

void divide(const Collective& c, at::Tensor& sum, int all) {
  if (c.reduce == ReduceOp::kAvg && !divides_early(c)) {
    sum.div_(all);
  }
}

std::vector<int> counterparts_of(const Layout& layout, int index) {
  std::vector<int> ranks;
  for (int host = 0; host < layout.hosts(); ++host) {
    ranks.push_back(layout.ranks_of(host)[layout.equal() ? static_cast<size_t>(index) : 0]);
  }
  return ranks;
}

}  // namespace

HostCollectives::HostCollectives(const Layout& layout, HostLinks links)
    : layout_(layout),
      links_(std::move(links)),
      host_(layout.host_of(links_.flat->rank())),
      index_(layout.index_of(links_.flat->rank())),
      here_(links_.local->size()),
      counterparts_(counterparts_of(layout, index_)) {}

Milliseconds HostCollectives::left() const {
  return std::max(
      Milliseconds(1), std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now()));
}

void HostCollectives::run(const Collective& collective, int64_t sequence, Milliseconds timeout) {
  op_ = collective.op;
  deadline_ = Clock::now() + timeout;
  agree(fingerprint_of(collective, sequence));
  const at::Tensor& any = collective.output.defined() ? collective.output : collective.input;
  if (any.defined() && any.numel() > 0) {
    perform(collective);
  }  // Else, as for a barrier, it is done: all have come.
}

void HostCollectives::perform(const Collective& c) {
  const bool by_index = layout_.equal();
  if (c.op == Op::kAllReduce) {
    all_reduce(c);
  } else if (c.op == Op::kBroadcast) {
    broadcast(c);
  } else if (c.op == Op::kReduceScatter && by_index) {
    reduce_scatter(c);
  } else if (c.op == Op::kAllGather && by_index) {
    all_gather(c);
  } else {
    links_.flat->start(c, left())->wait(left() + kSlack);
  }
}

void HostCollectives::agree(const Fingerprint& mine) {
  const int64_t bytes = sizeof(Fingerprint);
  const int64_t places = layout_.largest();
  const at::Tensor host = at::zeros({places * bytes}, at::kByte);
  const at::Tensor world = at::zeros({layout_.hosts() * places * bytes}, at::kByte);
  on_host(
      {.op = Op::kAllGather,
       .input = bytes_of_value(mine),
       .output = host.narrow(0, 0, here_ * bytes)});
  between_hosts(
      leads() ? std::optional(Collective{.op = Op::kAllGather, .input = host, .output = world})
              : std::nullopt);
  on_host({.op = Op::kBroadcast, .output = world});
  const auto prints = values_in<Fingerprint>(world);
  std::vector<Fingerprint> by_rank;
  for (int rank = 0; rank < layout_.size(); ++rank) {
    const int64_t place = layout_.host_of(rank) * places + layout_.index_of(rank);
    by_rank.push_back(prints[static_cast<size_t>(place)]);
  }
  if (const auto sides = mismatch(by_rank)) {
    throw CommError(name_of(op_), *sides);
  }
}

void HostCollectives::all_reduce(const Collective& c) {
  const at::Tensor whole = c.output.view({-1});
  const bool shared = layout_.equal() && static_cast<int64_t>(whole.nbytes()) >= kSharedBytes;
  const int64_t each = shared ? whole.numel() / here_ : 0;
  const at::Tensor body = whole.narrow(0, 0, each * here_);
  const at::Tensor rest = whole.narrow(0, body.numel(), whole.numel() - body.numel());

  // The host's first rank has, behind its share, what cannot be shared out; that may be all.
  const int64_t extra = leads() ? rest.numel() : 0;
  const bool all_is_rest = each == 0;
  at::Tensor share = all_is_rest ? rest : scratch(each + extra, whole.scalar_type());
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
  if (leads() || each > 0) {
    weigh(c, share, here_, layout_.size());
    part = {.op = Op::kAllReduce, .output = share, .reduce = over_hosts(c)};
  }
  between_hosts(part);
  if (part) {
    divide(c, share, layout_.size());
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
  // What this host's ranks have, together, for those of this rank's index.
  at::Tensor sums = scratch(each * layout_.hosts(), output.scalar_type());
  for (int host = 0; host < layout_.hosts(); ++host) {
    on_host(
        {.op = Op::kReduceScatter,
         .input = rows_of_host(input, host),
         .output = sums.narrow(0, host * each, each),
         .reduce = within_host(c)});
  }
  weigh(c, sums, here_, layout_.size());
  between_hosts(Collective{
      .op = Op::kReduceScatter, .input = sums, .output = output, .reduce = over_hosts(c)});
  divide(c, output, layout_.size());
}

void HostCollectives::all_gather(const Collective& c) {
  const at::Tensor input = bytes_of(c.input);
  const at::Tensor output = bytes_of(c.output);
  const int64_t each = input.numel();
  const at::Tensor parts = scratch(each * layout_.hosts(), at::kByte);
  between_hosts(Collective{.op = Op::kAllGather, .input = input, .output = parts});
  for (int host = 0; host < layout_.hosts(); ++host) {
    const bool there = is_consecutive(host);
    const at::Tensor rows =
        there ? rows_of_host(output, host) : at::empty({each * here_}, at::kByte);
    on_host({.op = Op::kAllGather, .input = parts.narrow(0, host * each, each), .output = rows});
    if (!there) {
      for (int index = 0; index < here_; ++index) {
        const int rank = layout_.ranks_of(host)[static_cast<size_t>(index)];
        output.narrow(0, rank * each, each).copy_(rows.narrow(0, index * each, each));
      }
    }
  }
}

void HostCollectives::broadcast(const Collective& c) {
  const at::Tensor tensor = bytes_of(c.output);
  const int root_host = layout_.host_of(c.root);
  const int root_index = layout_.index_of(c.root);
  const int carrier = layout_.equal() ? root_index : 0;
  if (host_ == root_host) {
    on_host({.op = Op::kBroadcast, .output = tensor, .root = root_index});
  }
  std::optional<Collective> part;
  if (index_ == carrier) {
    part = {.op = Op::kBroadcast, .output = tensor, .root = root_host};
  }
  between_hosts(std::move(part));
  if (host_ != root_host) {
    on_host({.op = Op::kBroadcast, .output = tensor, .root = carrier});
  }
}

void HostCollectives::on_host(Collective part) {
  over(*links_.local, "on the host of", layout_.ranks_of(host_), std::move(part));
}

void HostCollectives::between_hosts(std::optional<Collective> part) {
  Word mine;
  std::exception_ptr failed;
  if (part) {
    try {
      over(*links_.cross, "between", counterparts_, std::move(*part));
    } catch (const CommError& error) {
      failed = std::current_exception();
      mine.peer = error.peer();
      without_rank_suffix(error.what()).copy(mine.text.data(), mine.text.size() - 1);
      deadline_ = std::min(deadline_, Clock::now() + kPatience);
    }
  }
  const at::Tensor told = at::empty({here_ * static_cast<int64_t>(sizeof(Word))}, at::kByte);
  try {
    on_host({.op = Op::kAllGather, .input = bytes_of_value(mine), .output = told});
  } catch (const CommError&) {
    if (!failed) {
      throw;
    }
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
  const auto words = values_in<Word>(told);
  for (size_t index = 0; index < words.size(); ++index) {
    if (words[index].text[0] != '\0') {
      throw CommError(
          name_of(op_),
          fmt::format(
              "rank {} failed: {}",
              layout_.ranks_of(host_)[index],
              static_cast<const char*>(words[index].text.data())),
          static_cast<int>(words[index].peer));
    }
  }
}

void HostCollectives::over(
    Transport& link, const char* where, const std::vector<int>& ranks, Collective part) const {
  const auto start = Clock::now();
  try {
    const bool by_gloo = &link != links_.local.get();
    link.start(std::move(part), left())->wait(left() + (by_gloo ? kSlack : Milliseconds(0)));
  } catch (const CommError& error) {
    // It knows the ranks by their places among these.
    const bool known = error.peer() >= 0 && error.peer() < static_cast<int>(ranks.size());
    throw CommError(
        name_of(op_),
        fmt::format(
            "{} ranks {} (0 to {} in what follows): {}",
            where,
            fmt::join(ranks, ", "),
            ranks.size() - 1,
            without_rank_suffix(error.what())),
        known ? ranks[static_cast<size_t>(error.peer())] : -1,
        std::chrono::duration<double>(Clock::now() - start).count());
  }
}

bool HostCollectives::is_consecutive(int host) const {
  const std::vector<int>& ranks = layout_.ranks_of(host);
  return ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
}

at::Tensor HostCollectives::rows_of_host(const at::Tensor& rows, int host) const {
  const std::vector<int>& ranks = layout_.ranks_of(host);
  const int64_t each = rows.numel() / layout_.size();
  if (is_consecutive(host)) {
    return rows.narrow(0, ranks.front() * each, each * here_);
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
    scratch_ = at::Tensor();  // Its memory may be needed for the new one.
    scratch_ = links_.local->allocate(bytes);
  }
  return scratch_.narrow(0, 0, bytes).view(dtype);
}

}  // namespace lockstep::comm
