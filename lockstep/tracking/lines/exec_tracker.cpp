// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/lines/exec_tracker.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/system_error.h"
#include "lockstep/tracking/json_lines.h"

namespace lockstep::tracking {
namespace {

constexpr int kPollMs = 100;

/// Returns a spool's name that no other tracker of this process has.
std::string spool_name() {
  static std::atomic<int> count{0};
  return fmt::format("exec-{}-{}.jsonl", ::getpid(), count++);
}

/// Starts a shell with `input` as standard input, default signals, and none of them blocked.
int spawn_shell(pid_t& pid, const std::string& command, int input) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t to_default;
  ::sigemptyset(&none);
  ::sigemptyset(&to_default);
  ::sigaddset(&to_default, SIGPIPE);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &to_default);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::array<std::string, 3> words = {"sh", "-c", command};
  std::array<char*, 4> arguments = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const int error =
      ::posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

ExecTracker::ExecTracker(const std::filesystem::path& folder, ExecOptions options)
    : options_(std::move(options)) {
  if (options_.command.empty()) {
    throw ConfigError(
        "exec", "the command is empty; expected a program that reads JSON lines; try 'exec:cat'");
  }
  make_folders(folder);
  start();
  spool_ = std::make_unique<Spool>(
      folder / spool_name(), Spool::Options{}, [this](const std::vector<std::string>& lines) {
        return feed(lines);
      });
}

ExecTracker::~ExecTracker() {
  stopping_ = true;
  spool_.reset();
  input_.reset();
  if (!reaped_) {
    ::waitpid(pid_, nullptr, WNOHANG);
  }
}

void ExecTracker::start() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw ConfigError("exec", "cannot create a pipe: " + system_error_text(errno));
  }
  const UniqueFd output(ends[0]);
  input_.reset(ends[1]);
  ::fcntl(input_.get(), F_SETFL, O_NONBLOCK);
  const int error = spawn_shell(pid_, options_.command, output.get());
  if (error != 0) {
    throw ConfigError(
        "exec", fmt::format("cannot start '{}': {}", options_.command, system_error_text(error)));
  }
}

size_t ExecTracker::feed(const std::vector<std::string>& lines) {
  size_t fed = 0;
  while (fed < lines.size() && write_line(lines[fed] + "\n")) {
    ++fed;
  }
  return fed;
}

bool ExecTracker::write_line(const std::string& line) {
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = ::write(input_.get(), line.data() + done, line.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      if (stopping_) {
        return false;
      }
      pollfd event{input_.get(), POLLOUT, 0};
      ::poll(&event, 1, kPollMs);
    } else if (errno != EINTR) {
      throw Error("exec", fmt::format("the tracker '{}' {}", options_.command, ending()));
    }
  }
  return true;
}

std::string ExecTracker::ending() {
  int status = 0;
  // The input of a program that ends is closed shortly before its parent can wait for it.
  for (int i = 0; i < 20; ++i) {
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      reaped_ = true;
      return WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                 : fmt::format("ended with exit code {}", WEXITSTATUS(status));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "closed its input";
}

void ExecTracker::do_store_config(const nlohmann::json& config) {
  spool_->append(json_lines::config(config));
}

void ExecTracker::do_log(const Values& values, int64_t step) {
  spool_->append(json_lines::values(values, step, "the lines for " + options_.command));
}

void ExecTracker::do_log_histograms(const Histograms& histograms, int64_t step) {
  spool_->append(json_lines::histograms(histograms, step));
}

void ExecTracker::do_log_text(const Texts& texts, int64_t step) {
  spool_->append(json_lines::text(texts, step));
}

void ExecTracker::do_log_tables(const Tables& tables, int64_t step) {
  spool_->append(json_lines::tables(tables, step));
}

void ExecTracker::do_flush() {
  spool_->sync();
  if (!spool_->wait_until_delivered(milliseconds(options_.finish_timeout_s))) {
    log_warning(fmt::format(
        "[exec] the tracker '{}' has not read everything; {} bytes are in {}",
        options_.command,
        spool_->pending_bytes(),
        spool_->path().string()));
  }
}

void ExecTracker::do_finish(RunStatus status) {
  spool_->append(json_lines::status(status));
  do_flush();
  stopping_ = true;
  spool_->close();
  input_.reset();
  if (!reaped_) {
    wait_for_exit();
  }
}

void ExecTracker::wait_for_exit() {
  const auto end = std::chrono::steady_clock::now() + milliseconds(options_.finish_timeout_s);
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      log_warning(fmt::format(
          "[exec] the tracker '{}' (process {}) still runs {} s after the end of its input; it is "
          "not waited for any longer",
          options_.command,
          pid_,
          options_.finish_timeout_s));
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  reaped_ = true;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    log_warning(fmt::format(
        "[exec] the tracker '{}' {}",
        options_.command,
        WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                            : fmt::format("ended with exit code {}", WEXITSTATUS(status))));
  }
}

}  // namespace lockstep::tracking
