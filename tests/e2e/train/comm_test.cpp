// SPDX-License-Identifier: Apache-2.0
// Ranks that disagree on the transport, or on the arguments of an operation.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Runs two ranks, of which `changed` has these variables. The test fails after ten seconds.
Outcome run_with(const std::string& changed, const std::string& variables) {
  return run_clean(launch(
      "2",
      {"sh",
       "-c",
       "test $RANK != " + changed + " || export " + variables + "; exec " COMM_FIXTURE " join"}));
}

/// Runs two ranks of the fixture in this mode over this transport.
Outcome run_mode(const std::string& mode, const std::string& comm) {
  return run_clean(launch("2", {COMM_FIXTURE, mode}), {"LOCKSTEP_COMM=" + comm});
}

TEST(CommDisagreement, OnLockstepCommEndsTheJoinAtOnce) {
  const Outcome rank_1 = run_with("1", "LOCKSTEP_COMM=gloo");
  EXPECT_NE(rank_1.code, 0);
  EXPECT_THAT(
      rank_1.err, HasSubstr("LOCKSTEP_COMM differs between ranks; got gloo on rank 1, auto on"));
  const Outcome rank_0 = run_with("0", "LOCKSTEP_COMM=gloo");
  EXPECT_NE(rank_0.code, 0);
  EXPECT_THAT(
      rank_0.err, HasSubstr("LOCKSTEP_COMM differs between ranks; got auto on rank 1, gloo on"));
}

TEST(CommDisagreement, OnWorldSizeEndsTheJoinAtOnce) {
  for (const char* rank : {"0", "1"}) {
    // The other ranks share their host. This one does not, so it joins over Gloo.
    const Outcome outcome = run_with(rank, "WORLD_SIZE=3");
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("the ranks have different world sizes"));
  }
  const Outcome gloo = run_with("1", "LOCKSTEP_COMM=gloo WORLD_SIZE=3");
  EXPECT_NE(gloo.code, 0);
  EXPECT_THAT(gloo.err, HasSubstr("the ranks have different world sizes"));
}

TEST(CommMismatch, OfGatheredShapesIsAnErrorOnAllRanks) {
  for (const char* comm : {"shm", "gloo"}) {
    const Outcome vectors = run_mode("vectors", comm);
    EXPECT_NE(vectors.code, 0);
    for (const char* rank : {"[rank 0]", "[rank 1]"}) {
      EXPECT_THAT(
          vectors.err,
          HasSubstr(
              std::string(rank) +
              " error: [gather] the ranks pass different numbers of tensors; got 2 on rank 0, 3 on "
              "rank 1"));
    }
    const Outcome tensors = run_mode("tensors", comm);
    EXPECT_NE(tensors.code, 0);
    EXPECT_THAT(
        tensors.err,
        AllOf(
            HasSubstr("rank 0 calls gather (all_gather of float[2]"),
            HasSubstr("rank 1 calls gather (all_gather of float[3]"),
            Not(HasSubstr("left the group"))));
    const Outcome rows = run_mode("rows", comm);
    EXPECT_NE(rows.code, 0);
    EXPECT_THAT(
        rows.err,
        AllOf(
            HasSubstr("no dimension 0"),
            HasSubstr("rank 1 calls pad_across_processes (all_reduce with an invalid argument"),
            Not(HasSubstr("left the group"))));
  }
}

// Gloo's messages differ by side: the rank that has connected sees where its peer listens, the rank
// that has accepted sees the port from which its peer has connected.
TEST(CommLost, ARankThatIsLostIsNamedOnBothSidesOfItsConnections) {
  for (const std::string rank : {"0", "1", "2"}) {
    const Outcome outcome =
        run_clean(launch("3", {COMM_FIXTURE, "leave", rank}), {"LOCKSTEP_COMM=gloo"});
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(
        outcome.err,
        HasSubstr("is lost, or did not call the operation: the connection to rank " + rank));
    EXPECT_THAT(outcome.err, Not(HasSubstr("pair.cc")));
  }
}

TEST(CommProfile, WritesNothingToStderr) {
  const TestFolder folder;
  const Outcome outcome =
      run_clean(launch("1", {COMM_FIXTURE, "profile"}), {"TRACES=" + folder.path().string()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("USDT")));
}

}  // namespace
}  // namespace lockstep::e2e
