// SPDX-License-Identifier: Apache-2.0
#include "cli/env/env_programs.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostText = 65536;

/// Starts a process in its own process group, with its output to `out`; returns -1 on failure.
pid_t spawn(const std::vector<std::string>& words, int out) {
  std::vector<char*> argv;
  for (const std::string& word : words) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDERR_FILENO);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), ::environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

/// Reads the available data of a pipe; returns false at its end.
bool drain(const UniqueFd& in, std::string& text) {
  std::array<char, 4096> chunk;
  while (true) {
    const ssize_t size = ::read(in.get(), chunk.data(), chunk.size());
    if (size <= 0) {
      return size < 0 && (errno == EAGAIN || errno == EINTR);
    }
    text.append(chunk.data(), std::min(static_cast<size_t>(size), kMostText - text.size()));
  }
}

/// Reads until the process ends; returns false if `deadline` is first. Does not wait for the end of
/// the pipe, which children of the process may keep open.
bool read_to_end(
    const UniqueFd& in, const UniqueFd& process, Clock::time_point deadline, std::string& text) {
  bool open = true;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    std::array<pollfd, 2> items = {
        pollfd{.fd = process.get(), .events = POLLIN, .revents = 0},
        pollfd{.fd = open ? in.get() : -1, .events = POLLIN, .revents = 0}};
    const int ready =
        ::poll(items.data(), items.size(), static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    if (ready <= 0) {
      return false;
    }
    open = open && drain(in, text);
    if (items[0].revents != 0) {
      return true;
    }
  }
}

}  // namespace

std::optional<Answer> ask_program(const std::vector<std::string>& words, int timeout_ms) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return std::nullopt;
  }
  const UniqueFd in(ends[0]);
  ::fcntl(in.get(), F_SETFL, O_NONBLOCK);
  UniqueFd out(ends[1]);
  const pid_t pid = spawn(words, out.get());
  out.reset();
  if (pid < 0) {
    return std::nullopt;
  }
  Answer answer;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  // glibc 2.36 declares pidfd_open for C alone.
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const bool ended = process.is_open() && read_to_end(in, process, deadline, answer.text);
  ::kill(-pid, SIGKILL);  // The process, or its children.
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) {
    return std::nullopt;
  }
  answer.exit_code = WIFSIGNALED(status) ? kExitSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
  return answer;
}

std::string find_in_path(const std::string& name, const Environment& environment) {
  const auto runs = [](const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    return runs(name) ? name : "";
  }
  const std::string path = environment.text("PATH").value_or("/bin:/usr/bin");
  for (const std::string& folder : split(path, ':')) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (runs(candidate)) {
      return candidate;
    }
  }
  return "";
}

}  // namespace lockstep::cli
