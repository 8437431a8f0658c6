// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/slurm_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SlurmHosts, AreThoseThatScontrolShows) {
  EXPECT_THAT(slurm_hosts("gpu3"), ElementsAre("gpu3"));
  EXPECT_THAT(slurm_hosts("n[08-10,12],gpu3"), ElementsAre("n08", "n09", "n10", "n12", "gpu3"));
  EXPECT_THAT(slurm_hosts("n[9-11]"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(slurm_hosts("n[3]-ib,n4"), ElementsAre("n3-ib", "n4"));
  EXPECT_THAT(
      slurm_hosts("rack[1-2]n[3,5]"), ElementsAre("rack1n3", "rack1n5", "rack2n3", "rack2n5"));
}

TEST(SlurmHosts, AreNoneIfTheListIsMalformedOrEndless) {
  for (const char* list :
       {"",
        ",a",
        "a,",
        "node[",
        "node[]",
        "node[1-2",
        "node[,2]",
        "node[3-1]",
        "node[a-b]",
        "node[0-99999]",
        "a[0-999]b[0-999]",
        "node[1--2]",
        "node[-1]"}) {
    EXPECT_THAT(slurm_hosts(list), IsEmpty()) << list;
  }
}

}  // namespace
}  // namespace lockstep
