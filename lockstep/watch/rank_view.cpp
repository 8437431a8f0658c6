// SPDX-License-Identifier: Apache-2.0
#include "lockstep/watch/rank_view.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::watch {

std::optional<ProcessState> process_state(int64_t pid) {
  const UniqueFd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  if (!file.is_open() || ::read(file.get(), text.data(), text.size() - 1) <= 0) {
    return std::nullopt;
  }
  // The program's name may have spaces and parentheses: the fields follow the last one.
  const char* after_name = std::strrchr(text.data(), ')');
  if (after_name == nullptr) {
    return std::nullopt;
  }
  ProcessState found;
  int64_t user = 0;
  int64_t system = 0;
  std::istringstream fields(after_name + 1);
  fields >> found.state;
  constexpr int kBetween = 10;  // Parents, groups, faults.
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) {
    fields >> skipped;
  }
  if (!(fields >> user >> system)) {
    return std::nullopt;
  }
  static const int64_t ticks_per_second = ::sysconf(_SC_CLK_TCK);
  found.cpu_ms = (user + system) * 1000 / ticks_per_second;
  return found;
}

std::optional<int64_t> process_bytes(int64_t pid) {
  std::ifstream fields(fmt::format("/proc/{}/io", pid));
  std::string name;
  int64_t read = 0;
  int64_t written = 0;
  if (!(fields >> name >> read >> name >> written)) {  // rchar: and wchar:, the first lines.
    return std::nullopt;
  }
  return read + written;
}

const Operation* RankView::in_flight() const {
  const auto found =
      std::find_if(record.operations.begin(), record.operations.end(), [](const auto& operation) {
        return !operation.is_over();
      });
  return found == record.operations.end() ? nullptr : &*found;
}

const Operation* RankView::last_done() const {
  const auto found =
      std::find_if(record.operations.rbegin(), record.operations.rend(), [](const auto& operation) {
        return operation.is_over();
      });
  return found == record.operations.rend() ? nullptr : &*found;
}

const RankView* find_left_rank(const std::vector<RankView>& ranks) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [](const RankView& view) {
    // A rank that is still exiting may get SIGTERM meanwhile.
    const int code = view.exit_code.value_or(kExitOk);
    const bool exited = !view.running && !view.never_joined() && view.exit_code == kExitOk;
    return (view.record.left || exited) && !view.record.last_operation_failed() &&
           (code == kExitOk || code == kExitSignalBase + SIGTERM);
  });
  return found == ranks.end() ? nullptr : &*found;
}

std::string describe(const RankView& view, int64_t now) {
  constexpr const char* kStopped = ", stopped by a signal or a debugger";
  if (view.never_joined()) {
    return view.running
               ? std::string("has not joined the job") + (view.is_stopped() ? kStopped : "")
               : "has ended without joining the job";
  }
  std::string text = fmt::format("step {}", view.record.step);
  if (!view.running) {
    text += ", has ended";
  } else {
    text += view.record.left ? ", has left the job" : "";
    text += view.is_stopped() ? kStopped : "";
  }
  if (view.record.saving) {
    text += ", saving";
  }
  if (const Operation* operation = view.in_flight()) {
    text += fmt::format(
        ", in {} (operation {}) for {:.1f} s",
        operation->describe(),
        operation->number,
        seconds_of(now - operation->issued_ns));
  } else if (const Operation* done = view.last_done()) {
    text += fmt::format(
        ", in no operation; the last was {} (operation {}), {:.1f} s ago",
        done->describe(),
        done->number,
        seconds_of(now - done->ended_ns));
  } else {
    text += ", in no operation yet";
  }
  return text;
}

}  // namespace lockstep::watch
