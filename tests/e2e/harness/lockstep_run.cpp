// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/harness/lockstep_run.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <spawn.h>
#include <sstream>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/host/address.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/launcher/process/child.h"

namespace lockstep::e2e {
namespace {

constexpr std::chrono::milliseconds kPatience{30000};
constexpr std::chrono::seconds kSurvivalLimit{2};

/// Refuses the pids that kill() takes for a process group, and init.
void send_to(pid_t pid, int signal) {
  if (pid <= 1) {
    ADD_FAILURE() << "there is no process to send signal " << signal << " to; got pid " << pid;
    return;
  }
  ::kill(pid, signal);
}

void put(std::vector<std::string>& environment, const std::string& variable) {
  const std::string name = variable.substr(0, variable.find('=') + 1);
  std::erase_if(environment, [&](const std::string& other) { return other.starts_with(name); });
  environment.push_back(variable);
}

/// Returns this process's environment, overridden by `variables`, without the user's configuration.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = launcher::own_environment();
  put(environment, "XDG_CONFIG_HOME=/nonexistent");
  for (const std::string& variable : variables) {
    put(environment, variable);
  }
  return environment;
}

}  // namespace

LockstepRun::LockstepRun(
    const std::vector<std::string>& arguments,
    const std::vector<std::string>& variables,
    const std::string& input,
    const std::string& program)
    : mark_("LOCKSTEP_TEST_MARK=" + launcher::random_run_id()) {
  std::vector<std::string> words = {program.substr(program.rfind('/') + 1)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = environment_with(variables);
  environment.push_back(mark_);
  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    ADD_FAILURE() << "no pipes";
    return;
  }
  out_fd_.reset(out[0]);
  err_fd_.reset(err[0]);
  const UniqueFd out_end(out[1]);
  const UniqueFd err_end(err[1]);
  const UniqueFd in(::memfd_create("stdin", MFD_CLOEXEC));
  EXPECT_EQ(::write(in.get(), input.data(), input.size()), static_cast<ssize_t>(input.size()));
  ::lseek(in.get(), 0, SEEK_SET);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out_end.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err_end.get(), STDERR_FILENO);
  const int error = ::posix_spawn(
      &pid_,
      program.c_str(),
      &actions,
      nullptr,
      launcher::pointers_to(words).data(),
      launcher::pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0) << program;
  if (error != 0) {
    pid_ = -1;
  }
}

LockstepRun::~LockstepRun() {
  for (const pid_t process : processes()) {
    send_to(process, SIGKILL);
  }
  if (pid_ > 0) {
    ::waitpid(pid_, nullptr, 0);
  }
}

void LockstepRun::send(int signal) const {
  send_to(pid_, signal);
}

void LockstepRun::send_to_rank(int rank, int signal) {
  send_to(rank_pid(rank), signal);
}

bool LockstepRun::read_more(bool out_too, Clock::time_point end) {
  std::array<pollfd, 2> items = {
      pollfd{.fd = out_too ? out_fd_.get() : -1, .events = POLLIN, .revents = 0},
      pollfd{.fd = err_fd_.get(), .events = POLLIN, .revents = 0}};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  const auto patience = std::clamp(left, std::chrono::milliseconds(0), kPatience);
  if (::poll(items.data(), items.size(), static_cast<int>(patience.count())) <= 0) {
    ADD_FAILURE() << (patience < kPatience ? "the job is not over in time"
                                           : "there was no output for 30 s")
                  << "\nstdout: " << out_ << "\nstderr: " << err_;
    return false;
  }
  std::array<char, 65536> chunk;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].revents == 0) {
      continue;
    }
    const ssize_t size = ::read(items[i].fd, chunk.data(), chunk.size());
    if (size > 0) {
      (i == 0 ? out_ : err_).append(chunk.data(), static_cast<size_t>(size));
    } else {
      (i == 0 ? out_fd_ : err_fd_).reset();
    }
  }
  return (out_too && out_fd_.is_open()) || err_fd_.is_open();
}

void LockstepRun::await_out(const std::string& text, int times) {
  while (count(out_, text) < times) {
    ASSERT_TRUE(read_more()) << "stdout ended without '" << text << "': " << out_ << err_;
  }
}

void LockstepRun::await_err(const std::string& text) {
  while (count(err_, text) < 1) {
    ASSERT_TRUE(read_more(false)) << "stderr ended without '" << text << "': " << err_;
  }
}

pid_t LockstepRun::rank_pid(int rank) {
  const std::string word = "ready " + std::to_string(rank) + " ";
  while (true) {
    const size_t at = out_.find(word);
    if (at != std::string::npos && out_.find('\n', at) != std::string::npos) {
      return std::stoi(out_.substr(at + word.size()));
    }
    if (!read_more()) {
      ADD_FAILURE() << "rank " << rank << " is not ready: " << out_ << err_;
      return -1;
    }
  }
}

int LockstepRun::waiting_out_bytes() const {
  int bytes = 0;
  ::ioctl(out_fd_.get(), FIONREAD, &bytes);
  return bytes;
}

int LockstepRun::rank_count() const {
  int found = 0;
  for (const pid_t process : processes()) {
    const std::string name = contents("/proc/" + std::to_string(process) + "/comm");
    found += name == "lockstep\n" || name == "lockstep-watch\n" ? 0 : 1;
  }
  return found;
}

Outcome LockstepRun::wait() {
  return wait_until(Clock::time_point::max());
}

Outcome LockstepRun::wait(std::chrono::seconds limit) {
  return wait_until(Clock::now() + limit);
}

Outcome LockstepRun::wait_until(Clock::time_point end) {
  while (out_fd_.is_open() || err_fd_.is_open()) {
    if (!read_more(true, end) && (out_fd_.is_open() || err_fd_.is_open())) {
      send(SIGKILL);
      break;
    }
  }
  int status = 0;
  if (pid_ > 0) {
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  return {exit_code_of(status), out_, err_};
}

std::vector<pid_t> LockstepRun::processes() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec == std::errc() &&
        contents(entry.path() / "environ").find(mark_) != std::string::npos) {
      found.push_back(pid);
    }
  }
  return found;
}

std::vector<pid_t> LockstepRun::survivors() const {
  const auto limit = Clock::now() + kSurvivalLimit;
  std::vector<pid_t> found = processes();
  while (!found.empty() && Clock::now() < limit) {
    ::usleep(2000);  // The end of a process that is no child is no event.
    found = processes();
  }
  return found;
}

Outcome run_lockstep(
    const std::vector<std::string>& arguments,
    const std::vector<std::string>& variables,
    const std::string& input) {
  LockstepRun run(arguments, variables, input);
  return run.wait();
}

Outcome run_clean(
    const std::vector<std::string>& arguments, const std::vector<std::string>& variables) {
  LockstepRun run(arguments, variables);
  Outcome outcome = run.wait(std::chrono::seconds(10));
  EXPECT_EQ(run.survivors(), std::vector<pid_t>());
  return outcome;
}

nlohmann::json json_of(std::vector<std::string> arguments, int code, const std::string& schema) {
  arguments.emplace_back("--json");
  const Outcome outcome = run_lockstep(arguments);
  EXPECT_EQ(outcome.code, code) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
  nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["schema"], schema);
  return json;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

std::vector<std::string> launch(const std::string& ranks, const std::vector<std::string>& rest) {
  std::vector<std::string> words = {"launch", "-n", ranks};
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

std::vector<std::string> node_options(int node, int master_port, const std::string& master_addr) {
  return {
      "--nnodes",
      "2",
      "--node-rank",
      std::to_string(node),
      "--master-addr",
      master_addr,
      "--master-port",
      std::to_string(master_port)};
}

int free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address any = loopback(0);
  EXPECT_EQ(::bind(fd.get(), any.get(), any.length), 0);
  return own_address(fd.get()).port();
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

long process_status(pid_t pid, const std::string& field) {
  std::istringstream status(contents("/proc/" + std::to_string(pid) + "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) {
      return std::stol(line.substr(field.size() + 1));
    }
  }
  return -1;
}

int open_descriptors() {
  using Iterator = std::filesystem::directory_iterator;
  return static_cast<int>(std::distance(Iterator("/proc/self/fd"), Iterator()));
}

}  // namespace lockstep::e2e
