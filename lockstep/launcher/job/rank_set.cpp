// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/job/rank_set.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kKeptLines = 20;

std::optional<ExitStatus> exit_status_of(pid_t pid) {
  siginfo_t info{};
  // WNOWAIT: the pid stays taken.
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    // Other code of this process has reaped it: the exit status is lost, and counts as a failure.
    return errno == ECHILD ? std::optional(ExitStatus{.by_signal = false, .value = kExitFailure})
                           : std::nullopt;
  }
  if (info.si_pid == 0) {
    return std::nullopt;
  }
  return ExitStatus{
      .by_signal = info.si_code != CLD_EXITED,
      .value = info.si_status,
      .core_dumped = info.si_code == CLD_DUMPED};
}

/// Reaps the ended orphans of `group`, but not the rank that leads it.
void reap_orphans(pid_t group) {
  siginfo_t info{};
  while (::waitid(P_PGID, static_cast<id_t>(group), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0 && info.si_pid != group) {
    ::waitpid(info.si_pid, nullptr, 0);
    info = {};
  }
}

}  // namespace

RankSet::RankSet(Sink& out, Sink& err, bool prefix, int first_rank)
    : out_(&out), err_(&err), prefix_(prefix), first_rank_(first_rank) {
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

RankSet::~RankSet() {
  close();
}

void RankSet::add(Child child) {
  const int rank = static_cast<int>(ranks_.size());
  const std::string prefix = prefix_ ? fmt::format("[rank {}] ", first_rank_ + rank) : "";
  ranks_.push_back(
      {.pid = child.pid,
       .pidfd = std::move(child.pidfd),
       .out = LineForwarder(std::move(child.out), *out_, rank, prefix, 0),
       .err = LineForwarder(std::move(child.err), *err_, rank, prefix, kKeptLines)});
}

void RankSet::await(std::vector<pollfd>& items) {
  for (const RankProcess& process : ranks_) {
    if (!process.exit_status) {
      items.push_back({.fd = process.pidfd.get(), .events = POLLIN, .revents = 0});
    }
  }
  first_awaited_ = items.size();
  awaited_.clear();
  for (RankProcess& process : ranks_) {
    for (LineForwarder* stream : {&process.out, &process.err}) {
      if (stream->is_open() && !stream->must_wait()) {
        items.push_back({.fd = stream->fd(), .events = POLLIN, .revents = 0});
        awaited_.push_back(stream);
      }
    }
  }
}

void RankSet::pump(const std::vector<pollfd>& items) {
  for (size_t i = 0; i < awaited_.size(); ++i) {
    if (items[first_awaited_ + i].revents != 0) {
      awaited_[i]->pump();
    }
  }
}

std::vector<int> RankSet::collect_exits(double seconds) {
  std::vector<int> newly_ended;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    RankProcess& process = ranks_[rank];
    if (process.exit_status) {
      continue;
    }
    reap_orphans(process.pid);
    process.exit_status = exit_status_of(process.pid);
    if (process.exit_status) {
      process.ended_seconds = seconds;
      newly_ended.push_back(static_cast<int>(rank));
    }
  }
  return newly_ended;
}

void RankSet::send(int signal) {
  if (closed_) {
    return;  // The ids may have been reused.
  }
  for (const RankProcess& process : ranks_) {
    ::kill(-process.pid, signal);
  }
}

int RankSet::stop(int signal) {
  int living = 0;
  for (RankProcess& process : ranks_) {
    if (!process.exit_status) {
      process.stop_sent = true;
      ++living;
    }
  }
  send(signal);
  send(SIGCONT);
  return living;
}

bool RankSet::ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& process) {
    return process.exit_status.has_value();
  });
}

bool RankSet::outputs_closed() const {
  return ended() && std::none_of(ranks_.begin(), ranks_.end(), [](const RankProcess& process) {
           return process.out.is_open() || process.err.is_open();
         });
}

void RankSet::close() {
  if (closed_) {
    return;
  }
  send(SIGKILL);
  closed_ = true;
  for (RankProcess& process : ranks_) {
    for (LineForwarder* stream : {&process.out, &process.err}) {
      if (stream->is_open()) {
        stream->drain();
      }
    }
  }
  for (RankProcess& process : ranks_) {
    // The rank is not reaped yet, so its status can still be read.
    while (!process.exit_status) {
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOWAIT);
      process.exit_status = exit_status_of(process.pid);
    }
    while (::waitpid(-process.pid, nullptr, 0) > 0 || errno == EINTR) {
    }
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
}

}  // namespace lockstep::launcher
