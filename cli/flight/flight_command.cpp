// SPDX-License-Identifier: Apache-2.0
#include "cli/flight/flight_command.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "cli/common/arguments.h"
#include "cli/common/numbers.h"
#include "cli/common/usage_formatter.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/launcher/job/flight_watch.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using watch::Operation;
using watch::RankView;
using Json = nlohmann::json;

constexpr int kMostFlightRanks = 1 << 20;

constexpr const char* kFlightFooter = R"(Without DUMP, shows the newest dump of this user's jobs.

Examples:
  lockstep flight                              the last job that failed or stalled
  lockstep flight logs/4f2c/attempt_0/flight.json --rank 1 --last 50
                                               more operations of one rank
  lockstep flight --json | jq .ranks[].step    for programs

`lockstep launch` writes a dump if a job whose ranks use Lockstep fails or stalls: to its
--log-dir, else to ~/.local/state/lockstep/flights, which keeps the latest 20.

Exit code: 0; 2 if no dump exists, or the file is not a dump.)";

std::string duration_of(const Operation& operation, int64_t now) {
  const int64_t end = operation.is_over() ? operation.ended_ns : now;
  return fmt::format("{:.6f}", watch::seconds_of(end - operation.issued_ns));
}

/// Returns the latest operations of a rank, or all.
std::vector<Operation> latest(const RankView& view, size_t last) {
  const auto& all = view.record.operations;
  const size_t shown = last == 0 ? all.size() : std::min(last, all.size());
  return {all.end() - static_cast<std::ptrdiff_t>(shown), all.end()};
}

std::string operations_table(const std::vector<Operation>& operations, int64_t now) {
  std::vector<std::vector<std::string>> rows = {
      {"NUMBER",
       "STEP",
       "GROUP",
       "NUMBER IN GROUP",
       "STATE",
       "DURATION (s)",
       "AGE (s)",
       "OPERATION"}};
  for (const Operation& operation : operations) {
    rows.push_back(
        {std::to_string(operation.number),
         std::to_string(operation.step),
         operation.group == Operation::kWorld ? "all"
                                              : fmt::format("{:08x}", operation.group >> 32U),
         operation.sequence < 0 ? "-" : std::to_string(operation.sequence),
         name_of(operation.stage),
         duration_of(operation, now),
         fmt::format("{:.3f}", watch::seconds_of(now - operation.issued_ns)),
         printable(operation.describe())});
  }
  return render_table(rows, {true, true, false, true, false, true, true, false});
}

fs::path newest_dump() {
  const auto folder = launcher::flight_folder(Environment::process());
  std::vector<fs::path> dumps = folder ? launcher::dumps_in(*folder) : std::vector<fs::path>();
  if (dumps.empty()) {
    throw ConfigError(
        "lockstep flight",
        fmt::format(
            "no flight dump was found{}; a job writes one if it fails or stalls; try lockstep "
            "flight PATH",
            folder ? " in " + folder->string() : ""));
  }
  return std::move(dumps.back());
}

}  // namespace

Report show_flight(
    const watch::FlightDump& dump, const std::string& path, const FlightOptions& options) {
  Report report;
  report.text = fmt::format(
      "{}\n  {}  run {}\n  {}\n\n",
      printable(path),
      printable(dump.time),
      printable(dump.run_id),
      printable(dump.why));
  report.json = {{"path", path}, {"time", dump.time}, {"run_id", dump.run_id}, {"why", dump.why}};
  Json& ranks = report.json["ranks"] = Json::array();
  std::string tables;
  for (const RankView& view : dump.ranks) {
    report.text +=
        fmt::format("  rank {}  {}\n", view.rank, printable(watch::describe(view, dump.now_ns)));
    if (options.rank >= 0 && options.rank != view.rank) {
      continue;
    }
    RankView shown = view;
    shown.record.operations = latest(view, options.last);
    Json json(watch::to_json(shown));
    json["doing"] = watch::describe(view, dump.now_ns);
    ranks.push_back(std::move(json));
    if (!shown.record.operations.empty()) {
      tables += fmt::format(
          "\nrank {}{}, the last {} of {} operations\n{}",
          view.rank,
          view.host.empty() ? "" : " on " + printable(view.host),
          shown.record.operations.size(),
          view.record.issued,
          operations_table(shown.record.operations, dump.now_ns));
    }
  }
  if (options.rank >= 0 && ranks.empty()) {
    throw ConfigError(
        path, fmt::format("has no rank {}; expected 0 to {}", options.rank, dump.ranks.size() - 1));
  }
  report.text += tables;
  return report;
}

FlightCommand::FlightCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "flight", "Show what the ranks of a job that failed or stalled were doing")) {
  set_help(*command_, "lockstep flight [DUMP] [OPTIONS]", kFlightFooter);
  command_->add_option("--rank", options_.rank, "Show the operations of this rank only")
      ->type_name("R")
      ->check(integer_between(0, kMostFlightRanks));
  command_
      ->add_option(
          "--last", options_.last, "Number of operations of each rank; 0: all recorded ones (10)")
      ->type_name("N");
  command_->add_flag("--json", json_, "Print one JSON object, also for errors");
}

int FlightCommand::run(const std::vector<std::string>& words) const {
  return print_report("lockstep.flight", json_, [&] {
    expect_words("lockstep flight", words, 0, 1, "at most one dump");
    const fs::path path = words.empty() ? newest_dump() : fs::path(words[0]);
    return show_flight(watch::read_dump(path), path.string(), options_);
  });
}

}  // namespace lockstep::cli
