// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <functional>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::storage {

/// Runs a function in a forked process and controls each of its system calls. For tests.
///
/// The function must start no threads; the process ends with the returned exit code, or 99 after an
/// exception.
struct TracedChild {
  /// Decides about a system call: 0 permits it, kKill kills the process before it, a positive errno
  /// makes it fail.
  static constexpr int kKill = -1;
  using Decide = std::function<int(long number)>;

  enum class End { kExited, kKilled, kCannotTrace };
  End end = End::kCannotTrace;
  int code = 0;
};

inline int code_of(const std::function<int()>& body) {
  try {
    return body();
  } catch (...) {
    return 99;
  }
}

#if defined(__x86_64__)

inline TracedChild run_traced(const std::function<int()>& body, const TracedChild::Decide& decide) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      _exit(77);
    }
    raise(SIGSTOP);
    _exit(code_of(body));
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) {
    return {};
  }
  ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  bool entering = true;
  int failing = 0;
  while (true) {
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) {
      return {TracedChild::End::kExited, WEXITSTATUS(status)};
    }
    if (WIFSIGNALED(status)) {
      return {TracedChild::End::kKilled, WTERMSIG(status)};
    }
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
      continue;
    }
    user_regs_struct registers{};
    ptrace(PTRACE_GETREGS, child, nullptr, &registers);
    if (entering) {
      failing = decide(static_cast<long>(registers.orig_rax));
      if (failing == TracedChild::kKill) {
        kill(child, SIGKILL);
      } else if (failing > 0) {
        registers.orig_rax = ~0ULL;  // An invalid number, so that the kernel does nothing.
        ptrace(PTRACE_SETREGS, child, nullptr, &registers);
      }
    } else if (failing > 0) {
      registers.rax = static_cast<unsigned long long>(-static_cast<int64_t>(failing));
      ptrace(PTRACE_SETREGS, child, nullptr, &registers);
      failing = 0;
    }
    entering = !entering;
  }
}

#else

inline TracedChild run_traced(const std::function<int()>&, const TracedChild::Decide&) {
  return {};  // Only implemented for the registers of x86-64.
}

#endif

}  // namespace lockstep::storage
