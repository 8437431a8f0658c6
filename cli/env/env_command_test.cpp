// SPDX-License-Identifier: Apache-2.0
#include "cli/env/env_command.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/env/env_programs.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

constexpr int kEnvTimeoutMs = 20000;

TEST(AskProgram, ReturnsOutputAndExitCode) {
  const auto answer = ask_program({"sh", "-c", "echo one; echo two >&2; exit 3"}, kEnvTimeoutMs);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->exit_code, 3);
  EXPECT_EQ(answer->text, "one\ntwo\n");
  EXPECT_EQ(ask_program({"sh", "-c", "kill -9 $$"}, kEnvTimeoutMs)->exit_code, 137);
  EXPECT_FALSE(ask_program({"/no/such/program"}, kEnvTimeoutMs));
}

TEST(AskProgram, GivesUpOnAProgramThatDoesNotEnd) {
  EXPECT_FALSE(ask_program({"sh", "-c", "sleep 600 & sleep 600"}, 50));
}

TEST(AskProgram, DoesNotWaitForOrphans) {
  const auto answer = ask_program({"sh", "-c", "sleep 600 & echo done"}, kEnvTimeoutMs);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->text, "done\n");
}

TEST(AskProgram, KeepsAtMost64KiBOfTheOutput) {
  const auto answer = ask_program({"sh", "-c", "yes | head -c 1000000"}, kEnvTimeoutMs);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->text.size(), 65536U);
}

TEST(FindInPath, FindsTheProgramThatAShellWouldRun) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "a" / "tool");
  std::filesystem::create_directories(folder / "b");
  std::ofstream(folder / "b" / "tool") << "#!/bin/sh\n";
  const Environment environment =
      Environment::of({{"PATH", (folder / "a").string() + ":" + (folder / "b").string()}});
  EXPECT_EQ(find_in_path("tool", environment), "");
  std::filesystem::permissions(folder / "b" / "tool", std::filesystem::perms::owner_all);
  EXPECT_EQ(find_in_path("tool", environment), (folder / "b" / "tool").string());
}

TEST(RelevantVariables, AreNamedAndSecretsHidden) {
  EXPECT_THAT(
      relevant_variables(
          {"HOME=/root",
           "RANK=1",
           "LOCKSTEP_TIMEOUT_MS=5",
           "LOCKSTEP_JOB_TOKEN=abc",
           "NCCL_api_key=abc",
           "OMPI_URL=tcp://me:abc@host:1/,http://you:abc@other",
           "SLURM_EMPTY=",
           "ODD"}),
      ElementsAre(
          Pair("LOCKSTEP_JOB_TOKEN", "(hidden)"),
          Pair("LOCKSTEP_TIMEOUT_MS", "5"),
          Pair("NCCL_api_key", "(hidden)"),
          Pair("OMPI_URL", "tcp://(hidden)@host:1/,http://(hidden)@other"),
          Pair("RANK", "1"),
          Pair("SLURM_EMPTY", "")));
}

EnvFacts made_up_facts() {
  EnvFacts facts;
  facts.machine.cpu = {
      .model = "A CPU", .cores = 4, .allowed = 2, .numa_nodes = 1, .cgroup_cores = 1.5};
  facts.machine.memory = {
      .bytes = uint64_t{8} << 30, .available_bytes = uint64_t{512} << 20, .cgroup_bytes = {}};
  facts.machine.limits = {{.name = "nofile", .soft = 1024, .hard = {}}};
  facts.machine.interfaces = {
      {.name = "eth0", .up = true, .loopback = false, .addresses = {"10.0.0.1", "fe80::1"}}};
  facts.machine.gpus = {"NVIDIA H100"};
  facts.programs = {{.name = "ssh", .path = "/usr/bin/ssh", .version = "OpenSSH_9\x1b[31m"}};
  facts.modules = {
      {.name = "accelerate",
       .version = "1.15.0",
       .folder = "/l/lockstep/alias/packages/accelerate"},
      {.name = "deepspeed", .version = "0.19.8", .folder = "/site/deepspeed"}};
  facts.variables = {{"RANK", "1"}};
  facts.configured = {
      .file = "/a/config.yaml",
      .values = {{"mixed_precision", "bf16", "/a/config.yaml:1:18"}},
      .fault = ""};
  return facts;
}

TEST(EnvReport, SaysAllOfItInLines) {
  const Report report = env_report(made_up_facts());
  EXPECT_THAT(
      report.text,
      AllOf(
          HasSubstr("A CPU; 4 cores, 2 allowed; 1 NUMA node; cgroup limit 1.50 cores\n"),
          HasSubstr("memory:       8.0 GiB, 512 MiB available; no cgroup limit\n"),
          HasSubstr("/dev/shm:     none\n"),
          HasSubstr("nofile 1024 (hard unlimited)\n"),
          HasSubstr("eth0 up 10.0.0.1 fe80::1\n"),
          HasSubstr("gpu:          NVIDIA H100\n"),
          HasSubstr("python:       not found\n"),
          HasSubstr("accelerate:   means Lockstep, as version 1.15.0 (/l/lockstep/alias"),
          HasSubstr("deepspeed:    0.19.8 (/site/deepspeed); lockstep launch --alias"),
          HasSubstr("ssh:          OpenSSH_9\\x1b[31m (/usr/bin/ssh)\n"),
          HasSubstr("environment:  RANK=1\n"),
          HasSubstr("config file:  /a/config.yaml\n"),
          HasSubstr("config:       mixed_precision=bf16 (/a/config.yaml:1:18)\n"),
          HasSubstr("shm (within a host), gloo; nccl between GPUs")));
}

TEST(EnvReport, SaysTheSameAsJson) {
  const nlohmann::json json = env_report(made_up_facts()).json;
  EXPECT_EQ(json["cpu"]["cgroup_cores"], 1.5);
  EXPECT_EQ(json["memory"]["cgroup_bytes"], nullptr);
  EXPECT_EQ(json["limits"]["nofile"]["hard"], nullptr);
  EXPECT_EQ(json["interfaces"][0]["addresses"].size(), 2U);
  EXPECT_EQ(json["environment"]["RANK"], "1");
  EXPECT_EQ(json["backends"][2]["available"], true);
  EXPECT_EQ(json["python"]["modules"][0]["is_lockstep"], true);
  EXPECT_EQ(json["python"]["modules"][1]["is_lockstep"], false);
  EnvFacts without = made_up_facts();
  without.machine.gpus.clear();
  EXPECT_EQ(env_report(without).json["backends"][2]["available"], false);
  EXPECT_THAT(env_report(without).text, HasSubstr("no nccl: this machine has no NVIDIA GPU"));
  EXPECT_NE(json["lockstep"]["compiler"], "");
}

TEST(ConfiguredValues, ListOnlySettingsThatAreSet) {
  const TestFolder folder;
  std::ofstream(folder / "c.yaml") << "mixed_precision: bf16\nenv:\n  MY_TOKEN: abc\n";
  const std::string file = (folder / "c.yaml").string();
  const Configured configured = configured_values(
      Environment::of({{"LOCKSTEP_CONFIG_FILE", file}, {"LOCKSTEP_MAX_RESTARTS", "2"}}));
  EXPECT_EQ(configured.file, file);
  EXPECT_EQ(configured.fault, "");
  std::map<std::string, std::string> values;
  for (const Configured::Value& value : configured.values) {
    values[value.name] = value.value;
  }
  EXPECT_THAT(
      values,
      ElementsAre(
          Pair("env MY_TOKEN", "(hidden)"),
          Pair("max_restarts", "2"),
          Pair("mixed_precision", "bf16")));
}

TEST(ConfiguredValues, ReportInvalidSettingsWithoutThrowing) {
  const Configured configured =
      configured_values(Environment::of({{"LOCKSTEP_CONFIG_FILE", "/no/such/file.yaml"}}));
  EXPECT_THAT(configured.fault, HasSubstr("/no/such/file.yaml"));
}

}  // namespace
}  // namespace lockstep::cli
