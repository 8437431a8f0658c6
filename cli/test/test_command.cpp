// SPDX-License-Identifier: Apache-2.0
#include "cli/test/test_command.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/common/arguments.h"
#include "cli/common/build_facts.h"
#include "cli/common/usage_formatter.h"
#include "lockstep/base/env.h"
#include "lockstep/launcher/job/job.h"
#include "lockstep/launcher/plan/cores.h"
#include "lockstep/launcher/process/program.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTestCommand = "lockstep test";
constexpr const char* kProgram = "lockstep_selftest";
constexpr int kCannotLoad = 127;     // The exit code of a program without its libraries.
constexpr int kMostTestRanks = 100;  // The results of the checks must fit into eight bits.

constexpr const char* kTestFooter = R"(Examples:
  lockstep test                 a job of two ranks on this machine
  lockstep test -n 4 --json | jq '.checks[] | select(.ok | not)'
  python -m lockstep test       also the Python package, as lockstep test --python

Starts a real job, as lockstep launch does. Its ranks check every collective with every
reduction and dtype, the sharding of data, random numbers, that data parallel training
equals training on one process, and that a checkpoint is restored exactly. Prints each check
with its time; for a failed check also the rank, its result and the expected result.

Exit code: 0 if all checks pass; 1 if a check or the job fails; 2 for a usage error;
128 + N if signal N ended it.)";

/// A temporary folder; the destructor removes it with its content.
class RunFolder {
 public:
  RunFolder() {
    std::string name = (fs::temp_directory_path() / "lockstep-selftest-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(
          kTestCommand,
          "cannot create a temporary folder; " + std::generic_category().message(errno));
    }
    path_ = name;
  }
  ~RunFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Reads the objects of a file, one for each line; skips an incomplete last line.
std::vector<Json> read_lines(const fs::path& path) {
  std::vector<Json> objects;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_object()) {
      objects.push_back(std::move(object));
    }
  }
  return objects;
}

/// Reads the messages of ranks that had lost the other ranks.
Json lost_ranks(const fs::path& folder, int ranks) {
  Json lost = Json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    for (Json& object : read_lines(folder / fmt::format("lost_{}.jsonl", rank))) {
      lost.push_back(std::move(object));
    }
  }
  return lost;
}

bool ended_by_user(int job_code) {
  return job_code == kExitSignalBase + SIGINT || job_code == kExitSignalBase + SIGTERM;
}

}  // namespace

fs::path find_selftest(const fs::path& self) {
  const std::vector<fs::path> places = {
      self.parent_path() / kProgram,
      (self.parent_path() / "../libexec/lockstep" / kProgram).lexically_normal()};
  for (const fs::path& place : places) {
    if (::access(place.c_str(), X_OK) == 0) {
      return place;
    }
  }
  throw ConfigError(
      kTestCommand,
      fmt::format(
          "the program with the checks is missing; expected {} or {}; build or install Lockstep's "
          "library, which includes it",
          places[0].native(),
          places[1].native()));
}

Report selftest_report(const fs::path& folder, int ranks, int job_code) {
  const std::vector<Json> checks = read_lines(folder / "checks.jsonl");
  const Json lost = lost_ranks(folder, ranks);
  const auto failed =
      static_cast<size_t>(std::count_if(checks.begin(), checks.end(), [](const Json& check) {
        return check.value("ok", false) == false;
      }));
  const bool completed = job_code == 0 && lost.empty() && !checks.empty();
  Report report;
  for (const Json& rank : lost) {
    report.text += fmt::format(
        "  FAIL  {}: rank {}: {}\n",
        printable(rank.value("check", "?")),
        rank.value("rank", -1),
        printable(rank.value("message", "?")));
  }
  if (!completed) {
    report.text += fmt::format(
        "{} of {}: the job failed (exit code {})\n",
        kTestCommand,
        counted(static_cast<size_t>(ranks), "rank"),
        job_code);
    if (job_code == kCannotLoad && checks.empty()) {
      report.text += fmt::format(
          "  libtorch was not found; expected torch {}; add its folder torch/lib to "
          "LD_LIBRARY_PATH\n",
          kBuild.torch);
    }
  } else if (failed > 0) {
    report.text += fmt::format(
        "{} of {}: {} of {} failed\n",
        kTestCommand,
        counted(static_cast<size_t>(ranks), "rank"),
        failed,
        counted(checks.size(), "check"));
  } else {
    report.text += fmt::format(
        "{} of {}: {} passed\n",
        kTestCommand,
        counted(static_cast<size_t>(ranks), "rank"),
        counted(checks.size(), "check"));
  }
  report.exit_code = completed && failed == 0  ? kExitOk
                     : ended_by_user(job_code) ? job_code
                                               : static_cast<int>(kExitFailure);
  report.json = {
      {"ranks", ranks},
      {"ok", report.exit_code == kExitOk},
      {"job_exit_code", job_code},
      {"checks", checks},
      {"lost", lost}};
  return report;
}

TestCommand::TestCommand(CLI::App& app)
    : command_(app.add_subcommand("test", "Check this machine with a real job of several ranks")) {
  set_help(*command_, "lockstep test [-n N] [--json] [--python]", kTestFooter);
  command_->add_option("-n,--num-processes,--nproc-per-node", ranks_, "Number of ranks (2)")
      ->type_name("N|cpu|gpu|auto");
  command_->add_flag("--json", json_, "Print one JSON object, also for errors");
  command_->add_flag(
      "--python",
      python_,
      "Also check the package lockstep of the Python that lockstep launch uses");
}

int TestCommand::run_ranks(
    int ranks,
    const std::string& program,
    std::vector<std::string> argv,
    const std::string& folder) const {
  argv.push_back(folder);
  if (json_) {
    argv.emplace_back("--silent");
  }
  config::JobOptions options;
  options.ranks = ranks;
  options.quiet = true;
  options.json = json_;
  return launcher::run_job({program, std::move(argv), false}, options);
}

Report TestCommand::make_report() const {
  const launcher::Machine machine = launcher::this_machine();
  const int ranks = launcher::parse_ranks(ranks_, machine, "-n");
  launcher::check_rank_limit(ranks, machine.cores, /*force=*/false);
  if (ranks > kMostTestRanks) {
    throw ConfigError(
        kTestCommand,
        fmt::format("invalid value {} for -n; expected at most {}", ranks, kMostTestRanks));
  }
  const fs::path program = find_selftest(launcher::own_executable());
  const RunFolder folder;
  int code = run_ranks(ranks, program.native(), {program.native()}, folder.path().native());
  if (python_ && code == 0) {
    const std::string python = launcher::python_for(Environment::process());
    code = run_ranks(
        ranks, python, {python, "-m", "lockstep.test_utils.selftest"}, folder.path().native());
  }
  return selftest_report(folder.path(), ranks, code);
}

int TestCommand::run(const std::vector<std::string>& words) const {
  return print_report("lockstep.test", json_, [&] {
    expect_no_words(kTestCommand, words);
    return make_report();
  });
}

}  // namespace lockstep::cli
