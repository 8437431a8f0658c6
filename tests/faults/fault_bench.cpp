// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/fault_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "lockstep/base/env.h"
#include "lockstep/storage/write/temp_folder.h"

namespace lockstep::faults {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kFixture = FAULT_FIXTURE;
const std::string kPreload = COUNT_CALLS;

/// Most files take four calls; a multiple of four would always hit the same one.
constexpr int kStride = 5;

/// Returns the first call, the same one throughout this process.
int offset() {
  static const int value = [] {
    const auto given = Environment::process().integer("LOCKSTEP_FAULTS_OFFSET", 0, kStride - 1);
    const auto clock = std::chrono::system_clock::now().time_since_epoch();
    const int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(clock).count();
    return static_cast<int>(given.value_or(seconds % kStride));
  }();
  return value;
}

/// Returns a rank's lines by their step, or "end". The last line of a step counts.
std::map<std::string, std::string> lines_of(const fs::path& project, int rank) {
  std::map<std::string, std::string> lines;
  std::ifstream file(project / fmt::format("steps_{}", rank));
  for (std::string line; std::getline(file, line);) {
    lines[line.substr(0, line.find_first_of(": "))] = line;
  }
  return lines;
}

std::vector<Call> calls_in(const fs::path& log) {
  std::vector<Call> calls;
  std::ifstream file(log);
  Call call;
  while (file >> call.number >> call.kind >> call.path) {
    calls.push_back(call);
  }
  return calls;
}

}  // namespace

bool tries_all() {
  return Environment::process().text("LOCKSTEP_FAULTS") == "all";
}

std::vector<int> calls_to_try(int calls) {
  std::vector<int> tried;
  const int first = tries_all() ? 0 : offset();
  for (int call = 1 + first; call <= calls; call += tries_all() ? 1 : kStride) {
    tried.push_back(call);
  }
  return tried;
}

std::string how_to_repeat() {
  return tries_all() ? "LOCKSTEP_FAULTS=all" : fmt::format("LOCKSTEP_FAULTS_OFFSET={}", offset());
}

void FaultBench::SetUp() {
  RecordProperty("repeat", how_to_repeat());
  const Outcome outcome = run(unbroken_, {});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(last_step(unbroken_, 1), kLastStep);
}

fs::path FaultBench::checkpoint(const fs::path& project, int save) {
  return project / "checkpoints" / fmt::format("checkpoint_{}", save - 1);
}

fs::path FaultBench::project(const std::string& name, int saves) {
  fs::path project = folder_ / name;
  fs::remove_all(project);
  fs::create_directories(project / "checkpoints");
  for (int i = 1; i <= saves; ++i) {
    fs::copy(checkpoint(unbroken_, i), checkpoint(project, i), fs::copy_options::recursive);
  }
  storage::write_latest(project / "checkpoints", checkpoint(project, saves).filename());
  return project;
}

Outcome FaultBench::run(
    const fs::path& project,
    const std::vector<std::string>& arguments,
    const std::vector<std::string>& variables,
    int ranks) {
  std::vector<std::string> words = {kFixture, "--project", project.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = {"OMP_NUM_THREADS=1"};
  environment.insert(environment.end(), variables.begin(), variables.end());
  e2e::LockstepRun job(e2e::launch(std::to_string(ranks), words), environment);
  Outcome outcome = job.wait();
  EXPECT_THAT(job.survivors(), IsEmpty());
  return outcome;
}

std::pair<Outcome, std::vector<Call>> FaultBench::run_with_fault(
    const fs::path& project, const Fault& fault, const std::vector<std::string>& arguments) {
  const fs::path log = folder_ / "calls";
  fs::remove(log);
  std::vector<std::string> words = {"--resume", "--fault-at", std::to_string(kSecondSave)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  Outcome outcome =
      run(project,
          words,
          {"LD_PRELOAD=" + kPreload,
           // A build with AddressSanitizer would require to preload it first.
           "ASAN_OPTIONS=verify_asan_link_order=0",
           fmt::format("LOCKSTEP_FAULT_FOLDER={}/", fs::canonical(project).string()),
           fmt::format("LOCKSTEP_FAULT_RANK={}", fault.rank),
           fmt::format("LOCKSTEP_FAULT_CALL={}", fault.call),
           "LOCKSTEP_FAULT_ACTION=" + fault.action,
           "LOCKSTEP_FAULT_KINDS=" + fault.kinds,
           "LOCKSTEP_FAULT_LOG=" + log.string()});
  return {std::move(outcome), calls_in(log)};
}

int FaultBench::calls_of_a_save(int rank, const std::string& kinds) {
  const fs::path whole = project("whole", 1);
  const auto [outcome, calls] = run_with_fault(whole, {.rank = rank, .kinds = kinds});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_unbroken(whole);
  return static_cast<int>(calls.size());
}

void FaultBench::expect_unbroken(const fs::path& project, bool to_the_end) {
  for (const int rank : {0, 1}) {
    auto expected = lines_of(unbroken_, rank);
    const auto got = lines_of(project, rank);
    EXPECT_THAT(got, testing::Not(IsEmpty()));
    for (const auto& [key, line] : got) {
      if (key == "end" && !to_the_end) {
        continue;  // Of a run that was to end sooner.
      }
      EXPECT_EQ(line, expected[key]) << "rank " << rank;
    }
    EXPECT_TRUE(!to_the_end || got.contains("end")) << "rank " << rank;
  }
}

void FaultBench::expect_resumes(const fs::path& project, int from) {
  const Outcome outcome = run(project, {"--resume"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      HasSubstr(fmt::format("resumed {}\n", checkpoint(project, from).filename().string())));
  expect_unbroken(project);
  EXPECT_THAT(strangers_in(project), IsEmpty());
}

std::vector<std::string> strangers_in(const fs::path& project) {
  std::vector<std::string> strangers;
  for (const std::string& name : storage::names_in(project / "checkpoints")) {
    const bool plain =
        name == "latest" || name == ".lockstep_lock" ||
        (name.starts_with("checkpoint_") && name.find_first_not_of("0123456789", 11) == name.npos);
    if (!plain) {
      strangers.push_back(name);
    }
  }
  return strangers;
}

int last_step(const fs::path& project, int rank) {
  int last = 0;
  for (const auto& [key, line] : lines_of(project, rank)) {
    last = key == "end" ? last : std::max(last, std::stoi(key));
  }
  return last;
}

std::string failure_of(const fs::path& project, int rank) {
  const fs::path file = project / fmt::format("failure_{}", rank);
  return fs::exists(file) ? storage::read_bytes(file) : "";
}

}  // namespace lockstep::faults
