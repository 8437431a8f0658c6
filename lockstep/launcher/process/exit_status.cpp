// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/exit_status.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <tuple>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

/// The names of Linux's signals 1 to 31; glibc has them since 2.32 only (sigabbrev_np).
constexpr std::array kSignalNames = {
    "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1", "SEGV",
    "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN", "TTOU",
    "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
static_assert(SIGSEGV == 11 && SIGTERM == 15 && SIGSYS == 31);

auto root_cause_order(const RankFailure& failure) {
  const ExitStatus& exit_status = failure.exit_status;
  const bool killed =
      exit_status.by_signal && exit_status.value != SIGABRT && exit_status.value != SIGPIPE;
  return std::make_tuple(!failure.stalled, !killed, failure.lost_peer, failure.order, failure.rank);
}

}  // namespace

int ExitStatus::exit_code() const {
  return by_signal ? kExitSignalBase + value : value;
}

std::string ExitStatus::description() const {
  if (!by_signal) {
    return fmt::format("ended with exit code {}", value);
  }
  return fmt::format(
      "was killed by {} (signal {}{})",
      signal_name(value),
      value,
      core_dumped ? ", core dumped" : "");
}

std::string signal_name(int signal) {
  const bool has_name = signal >= 1 && signal <= static_cast<int>(kSignalNames.size());
  return has_name ? fmt::format("SIG{}", kSignalNames[static_cast<size_t>(signal) - 1])
                  : fmt::format("signal {}", signal);
}

std::string RankFailure::description() const {
  return stalled ? "stalled" : exit_status.description();
}

std::string RankFailure::sentence(int ranks) const {
  return fmt::format(
      "rank {} of {} {} after {:.1f} s{}{}",
      rank,
      ranks,
      description(),
      seconds,
      diagnostic.empty() ? "" : "; ",
      diagnostic);
}

int RankFailure::exit_code() const {
  if (stalled) {
    return kExitTimedOut;
  }
  return exit_status.is_success() ? kExitFailure : exit_status.exit_code();
}

RankFailure root_cause(const std::vector<RankFailure>& failures) {
  LOCKSTEP_ASSERT(!failures.empty(), "root_cause() needs at least one failure");
  return *std::min_element(
      failures.begin(), failures.end(), [](const RankFailure& a, const RankFailure& b) {
        return root_cause_order(a) < root_cause_order(b);
      });
}

}  // namespace lockstep::launcher
