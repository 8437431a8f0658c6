// SPDX-License-Identifier: Apache-2.0
// A call of a save fails. All ranks throw the same error with rank, file and reason; the old
// checkpoint stays, and nothing of the new one.
#include <cerrno>
#include <cstring>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/fault_bench.h"

namespace lockstep::faults {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// A kind of call that every save makes.
bool is_essential(const Call& call) {
  const std::set<std::string> kinds = {"create", "write", "fsync", "mkdir", "rename"};
  return kinds.contains(call.kind);
}

class Failing : public FaultBench {
 protected:
  /// Makes one call fail. Returns whether the save failed.
  bool fail_at(int rank, int number, int error, const std::string& kinds = "") {
    SCOPED_TRACE(fmt::format(
        "rank {}, call {}: {}; {} repeats it",
        rank,
        number,
        std::strerror(error),
        how_to_repeat()));
    const fs::path broken = project("broken", 1);
    const auto [outcome, calls] = run_with_fault(
        broken,
        {.rank = rank, .call = number, .action = std::to_string(error), .kinds = kinds},
        {"--steps", std::to_string(kSecondSave)});
    if (calls.size() < static_cast<size_t>(number)) {
      ADD_FAILURE() << "there was no such call";
      return false;
    }
    const Call& call = calls[static_cast<size_t>(number) - 1];
    SCOPED_TRACE(call.kind + " " + call.path.string());
    EXPECT_THAT(strangers_in(broken), IsEmpty());
    const auto newest = storage::find_newest(broken / "checkpoints", storage::Verify::kFull);
    EXPECT_THAT(newest.skipped, IsEmpty());
    // `latest` is written after the commit, so its failure does not fail the save.
    const bool committed = std::any_of(calls.begin(), calls.end(), [&](const Call& before) {
      return before.number <= number && before.path.filename().string().starts_with("latest");
    });
    if (outcome.code == 0) {
      EXPECT_FALSE(is_essential(call) && !committed) << "what was written may not be on the disk";
      EXPECT_EQ(newest.path, checkpoint(broken, 2));
      EXPECT_GT(
          storage::read_manifest(checkpoint(broken, 2)).sequence,
          storage::read_manifest(checkpoint(broken, 1)).sequence);
      expect_unbroken(broken, /*to_the_end=*/false);
      return false;
    }
    EXPECT_EQ(outcome.code, kFailed) << outcome.err;
    EXPECT_FALSE(committed) << outcome.err;
    EXPECT_EQ(newest.path, checkpoint(broken, 1)) << outcome.err;
    const auto says_all = AllOf(
        HasSubstr(call.path.filename()),
        HasSubstr(std::strerror(error)),
        HasSubstr(fmt::format("rank {}", rank)));
    for (const int each : {0, 1}) {
      EXPECT_THAT(failure_of(broken, each), says_all) << "on rank " << each;
    }
    EXPECT_THAT(outcome.err, says_all);
    return true;
  }

  void fail_everywhere(int rank, int at_least) {
    const int calls = calls_of_a_save(rank);
    constexpr std::array<int, 4> kErrors = {EIO, ENOSPC, EDQUOT, EROFS};
    int failed = 0;
    int tried = 0;
    for (const int call : calls_to_try(calls)) {
      failed += fail_at(rank, call, kErrors[static_cast<size_t>(tried++) % kErrors.size()]) ? 1 : 0;
      if (HasFailure()) {
        return;
      }
    }
    EXPECT_GE(failed, tries_all() ? at_least : 1);
  }
};

TEST_F(Failing, AnyCallOfRank0FailsTheSaveOnBothRanksOrDoesNotMatter) {
  fail_everywhere(0, 24);
}

TEST_F(Failing, AnyCallOfRank1FailsTheSaveOnBothRanksOrDoesNotMatter) {
  fail_everywhere(1, 8);
}

TEST_F(Failing, NoMoreDescriptorsFailTheSave) {
  EXPECT_TRUE(fail_at(0, 1, EMFILE, "create"));
  EXPECT_TRUE(fail_at(1, 1, ENFILE, "create"));
}

TEST_F(Failing, ShortWritesAreContinued) {
  const fs::path slow = project("slow", 1);
  const auto [outcome, calls] =
      run_with_fault(slow, {.rank = 0, .call = -1, .action = "short", .kinds = "write"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_GT(calls.size(), 50U) << "every write was halved until nothing was left";
  expect_unbroken(slow);
  const auto newest = storage::find_newest(slow / "checkpoints", storage::Verify::kFull);
  EXPECT_EQ(newest.path, checkpoint(slow, 3));
  EXPECT_THAT(newest.skipped, IsEmpty());
}

TEST_F(Failing, AFailedSaveDoesNotChangeTheTraining) {
  const fs::path stubborn = project("stubborn", 1);
  const auto [outcome, calls] = run_with_fault(
      stubborn,
      {.rank = 1, .call = 1, .action = std::to_string(EIO), .kinds = "fsync"},
      {"--go-on"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(failure_of(stubborn, 0), HasSubstr("rank 1"));
  expect_unbroken(stubborn);
  const auto newest = storage::find_newest(stubborn / "checkpoints", storage::Verify::kFull);
  EXPECT_EQ(newest.path, checkpoint(stubborn, 2)) << "the number of the failed one is free again";
  EXPECT_THAT(strangers_in(stubborn), IsEmpty());
}

}  // namespace
}  // namespace lockstep::faults
