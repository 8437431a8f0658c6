// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/stall.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"

namespace lockstep::watch {
namespace {

const char* has(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? "has" : "have";
}

bool is_member(const RankView& view, uint64_t group) {
  return group == Operation::kWorld ||
         std::any_of(
             view.record.operations.begin(),
             view.record.operations.end(),
             [group](const Operation& operation) { return operation.group == group; });
}

/// Returns whether the rank has issued the operation `wanted`, as far as recorded. A question that
/// rank 0 has asked alone has the number of another operation (comm::question_of).
bool has_issued(const RankView& view, const Operation& wanted) {
  return std::any_of(
      view.record.operations.begin(), view.record.operations.end(), [&](const Operation& own) {
        const bool is_it = own.sequence == wanted.sequence && own.name == wanted.name;
        return own.group == wanted.group && (own.sequence > wanted.sequence || is_it);
      });
}

struct Waiting {
  const RankView* view;
  const Operation* operation;
};

/// Returns the longest wait in an operation of a group.
std::optional<Waiting> longest_wait(const std::vector<RankView>& ranks) {
  std::optional<Waiting> longest;
  for (const RankView& view : ranks) {
    const Operation* operation = view.watched() ? view.in_flight() : nullptr;
    if (operation != nullptr &&
        (!longest || operation->issued_ns < longest->operation->issued_ns)) {
      longest = {&view, operation};
    }
  }
  return longest;
}

Stall explain_wait(const Waiting& waiting, const std::vector<RankView>& ranks, int64_t now) {
  const Operation& operation = *waiting.operation;
  const std::string what = fmt::format(
      "{}, in which rank {} has waited for {:.1f} s",
      operation.describe(),
      waiting.view->rank,
      seconds_of(now - operation.issued_ns));
  std::vector<int> absent;
  std::vector<int> stopped;
  std::vector<int> inside;
  for (const RankView& view : ranks) {
    const bool member =
        operation.sequence < 0 ? view.rank == operation.peer : is_member(view, operation.group);
    if (view.rank == waiting.view->rank || !member) {
      continue;
    }
    if (view.is_stopped()) {
      stopped.push_back(view.rank);
    } else if (operation.sequence < 0 || !has_issued(view, operation)) {
      absent.push_back(view.rank);
    } else {
      inside.push_back(view.rank);
    }
  }
  if (waiting.view->is_stopped()) {
    stopped.push_back(waiting.view->rank);
  }
  if (!stopped.empty()) {
    return {
        stopped,
        fmt::format(
            "{} {} stopped (SIGSTOP, SIGTSTP or a debugger); needed in {}",
            ranks_text(stopped),
            stopped.size() == 1 ? "is" : "are",
            what)};
  }
  if (!absent.empty()) {
    return {absent, fmt::format("{} {} not started {}", ranks_text(absent), has(absent), what)};
  }
  inside.push_back(waiting.view->rank);
  std::sort(inside.begin(), inside.end());
  return {
      inside,
      fmt::format(
          "{} are all in {}, but no data is transferred; check the network between them",
          ranks_text(inside),
          what)};
}

bool is_saver(const RankView& view) {
  return view.watched() && view.record.saving;
}

/// Returns whether a rank writes a checkpoint and makes progress, so that the others wait for it.
bool any_writer_progresses(const std::vector<RankView>& ranks, int64_t pause_ns) {
  return std::any_of(ranks.begin(), ranks.end(), [pause_ns](const RankView& view) {
    return is_saver(view) && view.in_flight() == nullptr && view.idle_ns < pause_ns;
  });
}

}  // namespace

bool save_progresses(const std::vector<RankView>& ranks, int64_t pause_ns) {
  const bool all_wait = std::all_of(ranks.begin(), ranks.end(), [](const RankView& view) {
    return !is_saver(view) || view.in_flight() != nullptr;
  });
  return any_writer_progresses(ranks, pause_ns) ||
         (all_wait && std::any_of(ranks.begin(), ranks.end(), is_saver));
}

std::optional<Stall> find_stopped(const std::vector<RankView>& ranks, int64_t timeout_ns) {
  std::vector<int> stopped;
  for (const RankView& view : ranks) {
    if (view.running && view.process.state == 'T' && view.stopped_ns >= timeout_ns) {
      stopped.push_back(view.rank);
    }
  }
  if (stopped.empty()) {
    return std::nullopt;
  }
  return Stall{
      stopped,
      fmt::format(
          "{} {} been stopped (SIGSTOP or SIGTSTP) for {:.1f} s; send SIGCONT to continue {}",
          ranks_text(stopped),
          has(stopped),
          seconds_of(timeout_ns),
          stopped.size() == 1 ? "it" : "them")};
}

std::optional<AbsentRank> find_ended_before_join(const std::vector<RankView>& ranks, int world) {
  const auto absent = std::find_if(ranks.begin(), ranks.end(), [](const RankView& view) {
    return !view.running && view.never_joined() && view.exit_code == kExitOk;
  });
  const auto waiter = std::find_if(ranks.begin(), ranks.end(), [world](const RankView& view) {
    return view.watched() && view.record.world == world;
  });
  const bool any_began = std::any_of(
      ranks.begin(), ranks.end(), [](const RankView& view) { return view.record.issued > 0; });
  if (absent == ranks.end() || waiter == ranks.end() || any_began) {
    return std::nullopt;
  }
  return AbsentRank{
      absent->rank,
      fmt::format(
          "it ended before it joined the job, and rank {} waits for it; every rank must construct "
          "an Accelerator, or connect",
          waiter->rank)};
}

std::optional<AbsentRank> find_stopped_before_join(
    const std::vector<RankView>& ranks, int world, int waiter) {
  const bool waited = std::any_of(ranks.begin(), ranks.end(), [&](const RankView& view) {
    return view.rank == waiter && !view.never_joined() && view.record.world == world &&
           view.record.issued == 0;
  });
  const auto absent = std::find_if(ranks.begin(), ranks.end(), [](const RankView& view) {
    return view.running && view.never_joined() && view.process.state == 'T';
  });
  if (!waited || absent == ranks.end()) {
    return std::nullopt;
  }
  return AbsentRank{
      absent->rank,
      fmt::format(
          "it was stopped (SIGSTOP or SIGTSTP) before it joined the job, and rank {} waited for it",
          waiter)};
}

std::optional<Stall> find_stall(
    const std::vector<RankView>& ranks, int64_t now, int64_t timeout_ns, int64_t since_ns) {
  if (any_writer_progresses(ranks, timeout_ns)) {
    return std::nullopt;
  }
  const auto waiting = longest_wait(ranks);
  if (waiting && now - std::max(waiting->operation->issued_ns, since_ns) >= timeout_ns) {
    return explain_wait(*waiting, ranks, now);
  }
  if (auto stopped = find_stopped(ranks, timeout_ns)) {
    return stopped;
  }
  std::vector<int> idle;
  size_t watched = 0;
  int64_t shortest = 0;
  for (const RankView& view : ranks) {
    if (!view.watched()) {
      continue;
    }
    ++watched;
    if (view.idle_ns >= timeout_ns && view.process.state != 't') {
      shortest = idle.empty() ? view.idle_ns : std::min(shortest, view.idle_ns);
      idle.push_back(view.rank);
    }
  }
  if (watched > 0 && idle.size() == watched) {
    return Stall{
        idle,
        fmt::format(
            "{} {} been idle for {:.1f} s: no operation, no step, no CPU time",
            ranks_text(idle),
            has(idle),
            seconds_of(shortest))};
  }
  return std::nullopt;
}

}  // namespace lockstep::watch
