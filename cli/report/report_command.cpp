// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report_command.h"

#include <algorithm>
#include <optional>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/common/usage_formatter.h"
#include "cli/report/page.h"
#include "cli/report/page_data.h"
#include "cli/report/run_files.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/launcher/job/flight_watch.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kReportFooter =
    R"(RUN is AcceleratorOptions::project_dir of a run, the folder of its logs, or a file in it. The page
has loss and learning rate, throughput, the time of a step in data, compute, communication and
checkpoint by rank, memory, configuration and environment; of a failed job also the end of the
flight recorder. It is one file, and loads nothing from the network.

The times of steps need AcceleratorOptions::record_steps, or LOCKSTEP_RECORD_STEPS=1 in the
environment of the run. Without them the page has the values that the trackers jsonl, tensorboard
or csv stored.

Examples:
  lockstep report runs/fashion_mnist               writes runs/fashion_mnist/report.html
  lockstep report runs/b --compare runs/a --output b_against_a.html
  lockstep report runs/b --flight logs/4f2c/attempt_0/flight.json

Exit code: 0; 1 if the page cannot be written; 2 if a file of the run cannot be read.)";

/// Returns the files named flight.json at most four folders below `folder`.
std::vector<fs::path> dumps_below(const fs::path& folder) {
  constexpr int kDepth = 4;
  std::vector<fs::path> dumps;
  std::error_code error;
  fs::recursive_directory_iterator entry(
      folder, fs::directory_options::skip_permission_denied, error);
  for (const fs::recursive_directory_iterator end; !error && entry != end; entry.increment(error)) {
    if (entry.depth() >= kDepth) {
      entry.disable_recursion_pending();
    }
    if (entry->path().filename() == "flight.json") {
      dumps.push_back(entry->path());
    }
  }
  return dumps;
}

/// Reads a dump if it is one, and of this run.
std::optional<watch::FlightDump> dump_of(const fs::path& path, const std::string& run_id) {
  try {
    watch::FlightDump dump = watch::read_dump(path);
    return dump.run_id == run_id ? std::optional(std::move(dump)) : std::nullopt;
  } catch (const ConfigError&) {
    return std::nullopt;  // Another program's file, or of another version.
  }
}

/// Finds the newest flight dump of the run, by the run id that the launcher gave it.
void find_flight(RunFiles& run, const fs::path& given, const Environment& environment) {
  const std::string run_id = run.ranks.empty() ? "" : run.ranks.front().header.value("run_id", "");
  if (run_id.empty()) {
    return;
  }
  std::vector<fs::path> candidates = dumps_below(given);
  if (const auto folder = launcher::flight_folder(environment)) {
    for (fs::path& dump : launcher::dumps_in(*folder)) {
      if (dump.filename().string().starts_with(run_id + "-")) {
        candidates.push_back(std::move(dump));
      }
    }
  }
  for (const fs::path& path : candidates) {
    auto dump = dump_of(path, run_id);
    if (dump && (!run.flight || run.flight->time <= dump->time)) {
      run.flight = std::move(dump);
      run.flight_path = path;
    }
  }
  if (!run.flight && run.status != "finished") {
    run.notes.emplace_back(
        "no flight dump of this run was found: `lockstep launch` writes one if the job fails or "
        "stalls; with --log-dir LOGS, pass --flight LOGS/ID/attempt_N/flight.json");
  }
}

RunFiles read_run(const fs::path& path, const fs::path& flight, const Environment& environment) {
  RunFiles run = read_run_files(path);
  std::error_code error;
  if (flight.empty()) {
    find_flight(run, fs::is_directory(path, error) ? path : run.folder, environment);
  } else {
    run.flight = watch::read_dump(flight);
    run.flight_path = flight;
  }
  return run;
}

double number(const OrderedJson& value) {
  return value.is_number() ? value.get<double>() : 0.0;
}

std::string percent_of(const OrderedJson& run, const std::vector<std::string>& parts) {
  double some = 0;
  double all = 0;
  for (const OrderedJson& rank : run["split"]) {
    all += rank["seconds"].get<double>();
    for (const std::string& part : parts) {
      some += rank["parts"][part].get<double>();
    }
  }
  return fmt::format("{:.1f} %", all > 0 ? 100 * some / all : 0.0);
}

std::string summary_of(const OrderedJson& run) {
  const std::string status = run["status"].get<std::string>();
  std::string text = fmt::format(
      "  {}: {}",
      printable(run["name"].get<std::string>()),
      status.empty() ? "no end is recorded" : status);
  if (run["split"].empty()) {
    return text + "\n";
  }
  text += fmt::format(
      ", {}, {} updates",
      counted(run["processes"].get<size_t>(), "rank"),
      with_commas(run["updates"].get<int64_t>()));
  if (number(run["samples_per_second"]) > 0) {
    text += fmt::format(
        ", {} samples/s", with_commas(static_cast<int64_t>(number(run["samples_per_second"]))));
  }
  return text + fmt::format(
                    "\n    a step's time: data {}, compute {}, communication {}, checkpoint {}, "
                    "other {}\n",
                    percent_of(run, {"data"}),
                    percent_of(run, {"forward", "backward", "optimizer"}),
                    percent_of(run, {"communication"}),
                    percent_of(run, {"checkpoint"}),
                    percent_of(run, {"other"}));
}

void write_page(const fs::path& path, const std::string& page) {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  write_atomically(path, page, 0666 & ~mask);
}

}  // namespace

Report report_run(
    const fs::path& run, const ReportOptions& options, const Environment& environment) {
  const RunFiles files = read_run(run, options.flight, environment);
  OrderedJson data = {{"runs", OrderedJson::array({page_data(files)})}};
  if (!options.compare.empty()) {
    data["runs"].push_back(page_data(read_run(options.compare, {}, environment)));
  }
  std::error_code error;
  const fs::path output = !options.output.empty()        ? options.output
                          : fs::is_directory(run, error) ? run / "report.html"
                                                         : files.folder / "report.html";
  write_page(output, make_page("lockstep report: " + run.string(), data));
  Report report;
  report.text = printable(output.string()) + "\n";
  for (const OrderedJson& one : data["runs"]) {
    report.text += summary_of(one);
    for (const OrderedJson& note : one["notes"]) {
      report.text += "    absent: " + printable(note.get<std::string>()) + "\n";
    }
  }
  report.json = {
      {"output", output.string()},
      {"runs",
       nlohmann::json::parse(
           data["runs"].dump(-1, ' ', false, OrderedJson::error_handler_t::replace))}};
  return report;
}

ReportCommand::ReportCommand(CLI::App& app)
    : command_(app.add_subcommand("report", "Write a page about a run: curves, times, memory")) {
  set_help(*command_, "lockstep report RUN [OPTIONS]", kReportFooter);
  command_->add_option("--output", output_, "Write the page to this file (RUN/report.html)")
      ->type_name("FILE");
  command_->add_option("--compare", compare_, "Compare with another run, in the same charts")
      ->type_name("OTHER");
  command_
      ->add_option("--flight", flight_, "Show this dump of the flight recorder (the run's newest)")
      ->type_name("DUMP");
  command_->add_flag("--json", json_, "Print one JSON object, also for errors");
}

int ReportCommand::run(const std::vector<std::string>& words) const {
  return print_report("lockstep.report", json_, [&] {
    if (words.size() != 1 || words[0].empty()) {
      throw ConfigError(
          "lockstep report",
          words.size() > 1 ? "got a second run, " + words[1] + "; expected one; try --compare"
                           : "the run is missing; expected its folder, such as runs/fashion_mnist");
    }
    return report_run(
        words[0],
        {.output = output_, .compare = compare_, .flight = flight_},
        Environment::process());
  });
}

}  // namespace lockstep::cli
