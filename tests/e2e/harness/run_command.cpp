// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/harness/run_command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/child.h"

namespace lockstep::e2e {
namespace {

/// Returns what was written to a file in memory. Unlike a pipe, it never fills up, so that it need
/// not be read while the program runs.
std::string contents(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  std::string text(static_cast<size_t>(size), '\0');
  EXPECT_EQ(::pread(fd, text.data(), text.size(), 0), size);
  return text;
}

}  // namespace

Outcome run_command(
    const std::vector<std::string>& words, const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  const UniqueFd out(::memfd_create("stdout", MFD_CLOEXEC));
  const UniqueFd err(::memfd_create("stderr", MFD_CLOEXEC));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.get(), STDERR_FILENO);
  pid_t pid = -1;
  const int error = ::posix_spawnp(
      &pid,
      words[0].c_str(),
      &actions,
      nullptr,
      launcher::pointers_to(words).data(),
      launcher::pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  Outcome outcome;
  if (error != 0) {
    ADD_FAILURE() << "cannot start " << words[0];
    return outcome;
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  outcome.code = exit_code_of(status);
  outcome.out = contents(out.get());
  outcome.err = contents(err.get());
  return outcome;
}

}  // namespace lockstep::e2e
