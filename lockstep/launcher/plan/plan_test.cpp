// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/plan.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/host/cores.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/launcher/plan/dry_run.h"
#include "lockstep/launcher/process/machine_name.h"

namespace lockstep::launcher {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

class PlanJob : public testing::Test {
 protected:
  /// The path of a hostfile that holds `text`.
  std::string hostfile(const std::string& text) {
    std::ofstream(folder_ / "hosts") << text;
    return folder_ / "hosts";
  }
  JobPlan plan() const { return plan_job(options_, {}); }
  std::string refusal() const {
    return error_of([&] { plan(); });
  }

  TestFolder folder_;
  config::JobOptions options_;
};

std::vector<std::string> variables(const JobPlan& plan, size_t host, int local_rank) {
  return rank_environment({}, host_environment(plan, host), local_rank);
}

TEST_F(PlanJob, OneHostIsThisOneAndUsesItsLoopback) {
  options_.ranks = 2;
  const JobPlan plan = this->plan();
  EXPECT_TRUE(plan.is_local());
  EXPECT_EQ(plan.world_size(), 2);
  EXPECT_EQ(plan.hosts[0].name, host_name());
  EXPECT_EQ(plan.common.master_addr, "127.0.0.1");
  EXPECT_EQ(plan.common.master_port, 0);
  EXPECT_FALSE(plan.needs_files());
}

TEST_F(PlanJob, CountsTheRanksOfTheHostsBefore) {
  options_.ranks = 2;
  options_.nodes = 3;
  options_.node_rank = 2;
  options_.master_addr = "node0";
  const JobPlan plan = this->plan();
  EXPECT_FALSE(plan.is_local());
  EXPECT_THAT(
      variables(plan, plan.here, 1),
      IsSupersetOf(
          {"RANK=5",
           "WORLD_SIZE=6",
           "LOCAL_RANK=1",
           "LOCAL_WORLD_SIZE=2",
           "GROUP_RANK=2",
           "GROUP_WORLD_SIZE=3",
           "MASTER_ADDR=node0",
           "MASTER_PORT=29500"}));
}

TEST_F(PlanJob, SharesATotalEvenlyOrRefusesIt) {
  options_.ranks = 0;
  options_.total_ranks = 4;
  options_.nodes = 2;
  options_.master_addr = "node0";
  EXPECT_EQ(plan().local_size(), 2);
  options_.total_ranks = 5;
  EXPECT_THAT(refusal(), HasSubstr("5 ranks cannot be shared evenly by 2 hosts"));
}

TEST_F(PlanJob, HostsMayHaveDifferentNumbersOfSlots) {
  options_.hostfile = hostfile("localhost slots=1\nother slots=3\n");
  options_.ranks = 0;
  const JobPlan plan = this->plan();
  EXPECT_EQ(plan.world_size(), 4);
  EXPECT_EQ(plan.here, 0U);
  EXPECT_TRUE(plan.includes_this_host);
  EXPECT_THAT(
      variables(plan, 1, 0),
      IsSupersetOf({"RANK=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=localhost"}));
  EXPECT_THAT(variables(plan, 1, 2), IsSupersetOf({"RANK=3", "LOCAL_RANK=2"}));
}

TEST_F(PlanJob, AHostfileOfThisHostAloneIsLocal) {
  for (const std::string& name :
       {std::string("localhost"), host_name(), std::string("127.0.0.1")}) {
    options_.hostfile = hostfile(name + " slots=3\n");
    options_.ranks = 0;
    EXPECT_TRUE(plan().is_local()) << name;
    EXPECT_EQ(plan().world_size(), 3);
    EXPECT_EQ(plan().common.master_addr, "127.0.0.1");
  }
  options_.hostfile = hostfile("elsewhere slots=3\n");
  EXPECT_FALSE(plan().is_local());
}

TEST_F(PlanJob, TakesTheFirstSlotsOfAHostfile) {
  options_.hostfile = hostfile("a slots=2\nb slots=2\n");
  options_.ranks = 0;
  options_.total_ranks = 3;
  EXPECT_THAT(plan().hosts[1].slots, ElementsAre(0));
  options_.total_ranks = 2;
  EXPECT_EQ(plan().hosts.size(), 1U);
  options_.total_ranks = 5;
  EXPECT_THAT(refusal(), HasSubstr("5 ranks do not fit on the hostfile's 4 slots"));
  options_.total_ranks = 0;
  options_.ranks = 1;
  EXPECT_EQ(plan().world_size(), 2);
  options_.ranks = 3;
  EXPECT_THAT(refusal(), HasSubstr("3 ranks do not fit on a, which has 2 slots"));
}

TEST_F(PlanJob, ChosenSlotsAreTheDevicesTheRanksSee) {
  options_.hostfile = hostfile("localhost slots=4\n");
  options_.ranks = 0;
  options_.include = "localhost:1,3";
  EXPECT_THAT(variables(plan(), 0, 0), Contains("CUDA_VISIBLE_DEVICES=1,3"));
  options_.visible_devices = "0";
  EXPECT_THAT(variables(plan(), 0, 0), Contains("CUDA_VISIBLE_DEVICES=0"));
}

TEST_F(PlanJob, OptionsBecomeVariablesUnderBothNames) {
  options_.ranks = 1;
  options_.mixed_precision = "bf16";
  options_.gradient_accumulation_steps = 4;
  options_.zero_stage = "2";
  options_.debug = true;
  options_.join_timeout_seconds = 1.5;
  options_.cpu = true;
  options_.role = "trainer";
  options_.env = {{"A", "1"}, {"OMP_NUM_THREADS", "7"}};
  const JobPlan plan = this->plan();
  EXPECT_THAT(
      variables(plan, 0, 0),
      IsSupersetOf(
          {"ACCELERATE_MIXED_PRECISION=bf16",
           "LOCKSTEP_MIXED_PRECISION=bf16",
           "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4",
           "LOCKSTEP_GRADIENT_ACCUMULATION_STEPS=4",
           "LOCKSTEP_ZERO_STAGE=2",
           "LOCKSTEP_DEBUG_MODE=1",
           "LOCKSTEP_JOIN_TIMEOUT_MS=1500",
           "ACCELERATE_USE_CPU=true",
           "CUDA_VISIBLE_DEVICES=",
           "ROLE_NAME=trainer",
           "A=1",
           "OMP_NUM_THREADS=7"}));
}

TEST_F(PlanJob, ReadsTheFileOfVariablesWithAHostfileOnly) {
  std::ofstream(folder_ / ".lockstep_env") << "FROM_FILE=1\nBOTH=file\n";
  options_.ranks = 1;
  options_.env = {{"BOTH", "flag"}};
  const std::vector<std::string> inherited = {
      "HOME=" + folder_.path().string(), "PYTHONPATH=/lib", "NCCL_DEBUG=INFO", "OTHER=1"};
  const auto without = host_environment(plan_job(options_, inherited), 0);
  EXPECT_THAT(rank_environment({}, without, 0), testing::Not(Contains("FROM_FILE=1")));
  options_.hostfile = hostfile("localhost slots=1\n");
  const auto with = host_environment(plan_job(options_, inherited), 0);
  EXPECT_THAT(
      rank_environment({}, with, 0),
      testing::AllOf(
          IsSupersetOf({"FROM_FILE=1", "BOTH=flag", "PYTHONPATH=/lib", "NCCL_DEBUG=INFO"}),
          testing::Not(Contains("OTHER=1"))));
}

TEST_F(PlanJob, SaysWhichStreamsGoWhere) {
  options_.ranks = 2;
  options_.redirects = "0:1,1:3";
  options_.tee = "1:2";
  options_.local_ranks_filter = "1";
  const JobPlan plan = this->plan();
  EXPECT_TRUE(plan.needs_files());
  EXPECT_TRUE(plan.outputs[0].files_only.out);
  EXPECT_FALSE(plan.outputs[0].files.err);
  EXPECT_FALSE(plan.outputs[0].shown);
  EXPECT_TRUE(plan.outputs[1].files_only.out);
  EXPECT_TRUE(plan.outputs[1].files.err);
  EXPECT_FALSE(plan.outputs[1].files_only.err) << "what is teed is shown";
  EXPECT_TRUE(plan.outputs[1].shown);
}

TEST_F(PlanJob, AFolderForLogsAloneMeansACopyOfAll) {
  options_.ranks = 1;
  options_.log_dir = "logs";
  EXPECT_TRUE(plan().outputs[0].files.out);
  EXPECT_FALSE(plan().outputs[0].files_only.out);
  options_.redirects = "0";
  EXPECT_FALSE(plan().needs_files());
}

TEST_F(PlanJob, RefusesContradictoryOptions) {
  const std::vector<std::pair<config::JobOptions, std::string>> cases = {
      {{.ranks = 1, .nodes = 2, .node_rank = 2, .master_addr = "a"}, "expected 0 to 1"},
      {{.ranks = 1, .nodes = 2}, "several hosts need --master-addr"},
      {{.ranks = 1, .include = "a"}, "add --hostfile"},
      {{.ranks = 1, .most_hosts = 1}, "add --hostfile"},
      {{.ranks = 1, .master_addr = "-oProxyCommand=x"}, "begins with '-'"},
      {{.ranks = 1, .master_addr = "elsewhere"}, "is not this machine"},
      {{.ranks = 1, .master_addr = "127.0.0.9"}, "is not this machine"},
      {{.ranks = 1, .run_id = "../x"}, "invalid value '../x' for --rdzv-id"},
      {{.ranks = kMaxRanksPerCore * available_cores() + 1}, "--force"},
      {{.ranks = 1, .redirects = "1:1"}, "invalid value '1:1' for --redirects"},
      {{.ranks = 1, .cpu = true, .visible_devices = "0"}, "give only one"},
      {{.ranks = 1, .threads_per_rank = 2, .env = {{"OMP_NUM_THREADS", "1"}}}, "give only one"},
      {{.ranks = 1, .env = {{"RANK", "1"}}}, "set by the launcher itself"}};
  for (const auto& [options, message] : cases) {
    options_ = options;
    EXPECT_THAT(refusal(), HasSubstr(message));
  }
  options_ = {};
  options_.hostfile = hostfile("localhost slots=65536\n");
  options_.ranks = 0;
  EXPECT_THAT(refusal(), HasSubstr("--force")) << "a hostfile is no way around the limit";
  options_.nodes = 2;
  EXPECT_THAT(refusal(), HasSubstr("the hostfile gives the number of hosts"));
}

TEST_F(PlanJob, TiesRanksToCores) {
  options_.ranks = 1;
  options_.cpu_bind = config::CpuBind::kCores;
  const JobPlan plan = this->plan();
  ASSERT_EQ(plan.cores.size(), 1U);
  EXPECT_EQ(static_cast<int>(plan.cores[0].size()), available_cores());
  EXPECT_THAT(plan.threads.summary, HasSubstr("; local rank 0 on core"));
}

TEST_F(PlanJob, CanBeDescribedWithoutARun) {
  options_.hostfile = hostfile("localhost slots=1\nother slots=2\n");
  options_.ranks = 0;
  options_.run_id = "r";
  const Program program = {"/bin/true", {"true", "a b"}, false};
  const auto object = dry_run_json(plan(), program);
  EXPECT_EQ(object["world_size"], 3);
  EXPECT_EQ(object["hosts"][0]["here"], true);
  EXPECT_EQ(object["hosts"][1]["name"], "other");
  EXPECT_EQ(object["hosts"][1]["ranks"][1]["rank"], 2);
  EXPECT_EQ(object["hosts"][1]["ranks"][1]["environment"]["LOCAL_RANK"], "1");
  const std::string text = dry_run_text(plan(), program);
  EXPECT_THAT(text, HasSubstr("3 ranks on 2 hosts; nothing was started\n"));
  EXPECT_THAT(text, HasSubstr("command:  true 'a b'\n"));
  EXPECT_THAT(text, HasSubstr("host localhost (this one): slot 0\n  rank 0, slot 0\n"));
  EXPECT_THAT(text, HasSubstr("host other: slots 0-1\n  rank 1, slot 0\n    RANK=1\n"));
}

TEST_F(PlanJob, DescribesTheMesh) {
  options_.hostfile = hostfile("localhost slots=2\nother slots=2\n");
  options_.ranks = 0;
  options_.mesh = "tp=2";
  const Program program = {"/bin/true", {"true"}, false};
  EXPECT_EQ(dry_run_json(plan(), program)["mesh"]["dp_replicate"], 2);
  EXPECT_THAT(
      dry_run_text(plan(), program),
      HasSubstr("\nmesh: dp_replicate=2,tp=2 (4 ranks)\n"
                "                  tp 0 1\n"
                "  dp_replicate 0     0 1   on localhost\n"
                "  dp_replicate 1     2 3   on other\n"));
}

TEST_F(PlanJob, RefusesAMeshThatTheHostsCannotHave) {
  options_.hostfile = hostfile("localhost slots=1\nother slots=3\n");
  options_.ranks = 0;
  options_.mesh = "tp=2";
  EXPECT_THAT(refusal(), HasSubstr("host 0 has 1 ranks, so the 2 ranks of a tp line"));
  options_.mesh = "tp=3";
  EXPECT_THAT(refusal(), HasSubstr("the mesh tp=3 needs a multiple of 3 ranks; the job has 4"));
}

TEST(IsThisHost, KnowsItsNamesAndAddresses) {
  for (const char* name : {"localhost", "LOCALHOST", "127.0.0.1", "me@localhost"}) {
    EXPECT_TRUE(is_this_host(name)) << name;
  }
  EXPECT_TRUE(is_this_host(host_name()));
  for (const char* name : {"elsewhere", "127.0.0.9", "192.0.2.1", "", "2001:db8::1"}) {
    EXPECT_FALSE(is_this_host(name)) << name;
  }
}

}  // namespace
}  // namespace lockstep::launcher
