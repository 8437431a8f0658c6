// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/report.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/text/shell.h"

namespace lockstep::launcher {
namespace {

std::string stopped_text(const FailureReport& report) {
  if (report.stopped == 0) {
    return "";
  }
  if (report.stopped == report.ranks - 1) {
    return report.stopped == 1 ? "; the other rank was stopped" : "; the other ranks were stopped";
  }
  return fmt::format(
      "; {} other rank{} stopped", report.stopped, report.stopped == 1 ? " was" : "s were");
}

std::string attempts_text(const FailureReport& report) {
  std::string text = fmt::format("  attempts:   {}, all failed\n", report.attempts);
  const auto listed = static_cast<int>(report.failed_attempts.size());
  if (listed < report.attempts) {
    text += fmt::format("    ... {} before these\n", report.attempts - listed);
  }
  for (const FailedAttempt& attempt : report.failed_attempts) {
    text += fmt::format(
        "    attempt {}: rank {} {} after {:.1f} s\n",
        attempt.number,
        attempt.cause.rank,
        attempt.cause.description(),
        attempt.cause.seconds);
  }
  return text;
}

nlohmann::ordered_json as_json(const RankFailure& failure) {
  nlohmann::ordered_json object = {{"rank", failure.rank}, {"pid", failure.pid}};
  if (failure.stalled) {
    object["stalled"] = true;
  } else if (failure.exit_status.by_signal) {
    object["signal"] = failure.exit_status.value;
    object["signal_name"] = signal_name(failure.exit_status.value);
    object["core_dumped"] = failure.exit_status.core_dumped;
  } else {
    object["code"] = failure.exit_status.value;
  }
  object["seconds"] = failure.seconds;
  if (!failure.diagnostic.empty()) {
    object["remark"] = failure.diagnostic;
  }
  return object;
}

}  // namespace

std::string text_report(const FailureReport& report) {
  std::string text =
      fmt::format("lockstep: {}{}\n", report.cause.sentence(report.ranks), stopped_text(report));
  text += fmt::format("  host:       {}, pid {}\n", report.host, report.cause.pid);
  text += fmt::format("  command:    {}\n", shell_quoted(report.command));
  text += fmt::format("  exit code:  {}\n", report.exit_code);
  for (const RankFailure& other : report.also_failed) {
    text += fmt::format("  also:       rank {} {}\n", other.rank, other.exit_status.description());
  }
  if (!report.log_file.empty()) {
    text += fmt::format("  log:        {}\n", report.log_file);
  }
  for (const std::string& line : report.rank_states) {
    text += fmt::format("  {}\n", line);
  }
  if (!report.flight.empty()) {
    text += fmt::format(
        "  details:    lockstep flight {}   (the last operations of every rank)\n",
        shell_quoted({report.flight}));
  }
  if (report.attempts > 1) {
    text += attempts_text(report);
  }
  if (!report.last_lines.empty()) {
    text += "  last lines of its stderr:\n";
  }
  for (const std::string& line : report.last_lines) {
    text += "    " + line + "\n";
  }
  return text;
}

std::string json_report(const FailureReport& report) {
  nlohmann::ordered_json object = {
      {"version", 1},
      {"event", "job_failed"},
      {"exit_code", report.exit_code},
      {"world_size", report.ranks}};
  object["host"] = report.host;
  object["command"] = report.command;
  object["cause"] = as_json(report.cause);
  object["cause"]["last_lines"] = report.last_lines;
  if (!report.log_file.empty()) {
    object["cause"]["log_file"] = report.log_file;
  }
  if (!report.rank_states.empty()) {
    object["doing"] = report.rank_states;
  }
  if (!report.flight.empty()) {
    object["flight"] = report.flight;
  }
  object["also_failed"] = nlohmann::ordered_json::array();
  for (const RankFailure& other : report.also_failed) {
    object["also_failed"].push_back(as_json(other));
  }
  object["stopped"] = report.stopped;
  object["attempts"] = report.attempts;
  object["failed_attempts"] = nlohmann::ordered_json::array();
  for (const FailedAttempt& attempt : report.failed_attempts) {
    nlohmann::ordered_json entry = as_json(attempt.cause);
    entry["attempt"] = attempt.number;
    object["failed_attempts"].push_back(std::move(entry));
  }
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::launcher
