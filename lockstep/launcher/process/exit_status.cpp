// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/exit_status.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <tuple>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

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
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
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
