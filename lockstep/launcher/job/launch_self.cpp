// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/world.h"
#include "lockstep/base/program/run_main.h"
#include "lockstep/base/text/split.h"
#include "lockstep/launcher/job/job.h"
#include "lockstep/launcher/job/launch.h"
#include "lockstep/launcher/plan/rank_environment.h"
#include "lockstep/launcher/process/memfd_message.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kWhere = "lockstep::launch";
// Holds a rank's call, the path of the results of earlier calls, and the path of each rank's
// result.
constexpr const char* kCallVariable = "LOCKSTEP_LAUNCH_CALL";

// The first character of a rank's message.
constexpr char kResult = '=';
constexpr char kConfigError = '2';
constexpr char kOtherError = '1';

/// The result of a call.
struct CallResult {
  std::vector<std::string> results{};
  std::string error{};   ///< The text of the exception; empty without one.
  bool by_user = false;  ///< The exception was a ConfigError.

  std::vector<std::string> get() const {
    if (!error.empty() && by_user) {
      throw ConfigError(kWhere, error);
    }
    if (!error.empty()) {
      throw Error(kWhere, error);
    }
    return results;
  }
};

struct Calls {
  int64_t count = 0;     // launch() calls of this process.
  bool in_rank = false;  // This process was started for the last of them.
  std::vector<CallResult> done;
};

Calls& calls() {
  static Calls calls;
  return calls;
}

std::string pack_results(const std::vector<CallResult>& results) {
  std::string bytes;
  for (const CallResult& result : results) {
    Packed<std::vector<std::string>>::put(result.results, bytes);
    Packed<std::string>::put(result.error, bytes);
    Packed<bool>::put(result.by_user, bytes);
  }
  return bytes;
}

std::vector<CallResult> unpack_results(const std::string& bytes) {
  std::vector<CallResult> results;
  for (PackedReader reader(bytes); reader.left() > 0;) {
    CallResult& result = results.emplace_back();
    result.results = Packed<std::vector<std::string>>::take(reader);
    result.error = Packed<std::string>::take(reader);
    result.by_user = Packed<bool>::take(reader);
  }
  return results;
}

/// The call for which a rank of launch() was started.
struct LaunchCall {
  int64_t call = 0;
  std::string own_message;
};

std::optional<LaunchCall> launch_call() {
  const auto text = Environment::process().text(kCallVariable);
  if (!text) {
    return std::nullopt;
  }
  const std::vector<std::string> parts = split(*text, ',');
  const auto rank = static_cast<size_t>(world_from_environment(Environment::process()).rank);
  const auto call = parse_integer(parts.front());
  if (!call || parts.size() < rank + 3) {
    throw ConfigError(
        kWhere, fmt::format("invalid value '{}' for {}; unset it", *text, kCallVariable));
  }
  if (calls().done.empty()) {
    calls().done = unpack_results(MemfdMessage::read_from(parts[1]));
  }
  return LaunchCall{*call, parts[rank + 2]};
}

[[noreturn]] void run_launch_call(
    const LaunchCall& launch_call, const std::function<std::string()>& body) {
  calls().in_rank = true;
  ::unsetenv(kCallVariable);  // Programs that the rank starts must not read it.
  const int code = run_main([&] {
    try {
      MemfdMessage::write_to(launch_call.own_message, kResult + body());
    } catch (const ConfigError& error) {
      MemfdMessage::write_to(launch_call.own_message, kConfigError + std::string(error.what()));
      throw;
    } catch (const std::exception& error) {
      MemfdMessage::write_to(launch_call.own_message, kOtherError + std::string(error.what()));
      throw;
    }
    return 0;
  });
  std::exit(code);
}

void check_can_launch(const config::JobOptions& options) {
  const WorldSpec world = world_from_environment(Environment::process());
  if (calls().in_rank) {
    throw ConfigError(
        kWhere, "launch() cannot be called by the function that launch() runs; call it from main");
  }
  if (world.source != "alone") {
    throw ConfigError(
        kWhere,
        fmt::format(
            "this process is already rank {} of {}, according to {}; start the program without a "
            "launcher, or call the function itself instead of launch()",
            world.rank,
            world.size,
            world.source));
  }
  if (options.ranks < 1) {
    throw ConfigError(kWhere, fmt::format("got {} ranks; expected at least 1", options.ranks));
  }
  if (options.nodes != 1 || !options.hostfile.empty()) {
    throw ConfigError(
        kWhere, "launch() starts ranks on this host only; use `lockstep launch` for several hosts");
  }
}

/// Returns this program with its arguments; /proc/self/exe is valid even if the file was moved.
Program this_program() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string words{std::istreambuf_iterator<char>(file), {}};
  Program program{.path = "/proc/self/exe", .argv = split(words, '\0')};
  program.argv.pop_back();  // Each word ends with a zero.
  return program;
}

/// Returns the error of the rank that failed first.
CallResult failed(const RankFailure& cause, int ranks, const std::string& content) {
  if (!content.empty() && content.front() != kResult) {
    return {
        .error = fmt::format("rank {} of {} failed: {}", cause.rank, ranks, content.substr(1)),
        .by_user = content.front() == kConfigError};
  }
  return {.error = cause.sentence(ranks)};
}

/// Returns the result of a job that ended without a failed rank.
CallResult ended_otherwise(int code, const config::JobOptions& options) {
  if (code == kExitTimedOut) {
    return {
        .error =
            fmt::format("the ranks ran for {:g} s, their time limit", options.timeout_seconds)};
  }
  if (code > kExitSignalBase) {
    ::raise(code - kExitSignalBase);  // As if this process had not forwarded it.
    return {
        .error = fmt::format("the ranks were ended by {}", signal_name(code - kExitSignalBase))};
  }
  return {.error = fmt::format("the ranks ended with exit code {}", code)};
}

CallResult run_ranks(config::JobOptions options, int64_t call) {
  const MemfdMessage earlier;
  MemfdMessage::write_to(earlier.path(), pack_results(calls().done));
  const std::vector<MemfdMessage> messages(static_cast<size_t>(options.ranks));
  std::string value = fmt::format("{},{}", call, earlier.path());
  for (const MemfdMessage& message : messages) {
    value += "," + message.path();
  }
  set_variable(options.env, {kCallVariable, value});
  std::cout.flush();
  std::fflush(nullptr);  // Earlier output precedes that of the ranks.
  std::optional<FailureReport> failure;
  const int code = run_job(
      this_program(), options, [&failure](const FailureReport& report) { failure = report; });
  if (code == kExitPreempted) {
    std::exit(code);
  }
  if (failure) {
    const RankFailure& cause = failure->cause;
    return failed(cause, options.ranks, messages[static_cast<size_t>(cause.rank)].read());
  }
  if (code != 0) {
    return ended_otherwise(code, options);
  }
  CallResult result;
  for (const MemfdMessage& message : messages) {
    const std::string content = message.read();
    if (content.empty() || content.front() != kResult) {
      result.error = fmt::format(
          "rank {} of {} ended before it reached launch(); main must reach the same call in every "
          "rank",
          result.results.size(),
          options.ranks);
      return result;
    }
    result.results.push_back(content.substr(1));
  }
  return result;
}

/// Returns the error without the "[where] " that the constructor of Error adds.
std::string bare_text(const std::string& text) {
  const std::string prefix = fmt::format("[{}] ", kWhere);
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

/// Runs the ranks of this call and records its result or exception. Ranks of later calls count the
/// calls of main, so each call needs a record.
const CallResult& run_and_record(const config::JobOptions& options, int64_t call) {
  std::vector<CallResult>& done = calls().done;
  try {
    check_can_launch(options);
    return done.emplace_back(run_ranks(options, call));
  } catch (const ConfigError& error) {
    done.push_back({.error = bare_text(error.what()), .by_user = true});
    throw;
  } catch (const std::exception& error) {
    done.push_back({.error = bare_text(error.what())});
    throw;
  }
}

}  // namespace

std::vector<std::string> launch_self(
    const std::function<std::string()>& body, const config::JobOptions& options) {
  const std::optional<LaunchCall> own = launch_call();
  const int64_t call = ++calls().count;
  if (own && call < own->call) {
    return calls().done.at(static_cast<size_t>(call - 1)).get();
  }
  if (own && call == own->call) {
    run_launch_call(*own, body);
  }
  return run_and_record(options, call).get();
}

}  // namespace lockstep::launcher
