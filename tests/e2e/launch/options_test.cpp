// SPDX-License-Identifier: Apache-2.0
// The options of `lockstep launch`, with a job on this machine.
#include <csignal>
#include <filesystem>
#include <regex>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"
#include "tests/e2e/launch/test_fixture.h"

namespace lockstep::e2e {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(LaunchHostfile, OfThisHostAloneRunsHereWithItsSlots) {
  const TestFolder folder;
  const std::string file = write_text(folder / "hosts", "# here\r\nlocalhost slots=3\r\n");
  const Outcome outcome =
      run_clean({"launch", "--hostfile", file, "--quiet", "sh", "-c", "echo $RANK of $WORLD_SIZE"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("0 of 3\n"), HasSubstr("2 of 3\n")));
  const Outcome part = run_clean(
      {"launch",
       "-H",
       file,
       "-i",
       "localhost:1,2",
       "--quiet",
       "sh",
       "-c",
       "echo $WORLD_SIZE $CUDA_VISIBLE_DEVICES"});
  EXPECT_EQ(part.out, "2 1,2\n2 1,2\n");
}

TEST(LaunchHostfile, TakesFiltersAsDeepSpeedDoes) {
  const TestFolder folder;
  const std::string file = write_text(folder / "hosts", "localhost slots=3\n");
  const Outcome twice = run_clean(
      {"launch",
       "-H",
       file,
       "-i",
       "localhost:1@localhost",
       "--quiet",
       "sh",
       "-c",
       "echo $WORLD_SIZE $CUDA_VISIBLE_DEVICES"});
  EXPECT_EQ(twice.out, "1 1\n") << twice.err;
  for (const std::string filter : {"--include", "--exclude"}) {
    const Outcome both = run_clean(
        {"launch", "-H", file, "-n", "2", filter, "localhost:1", "sh", "-c", "echo started"});
    EXPECT_EQ(both.code, 2);
    EXPECT_EQ(both.out, "");
    EXPECT_THAT(both.err, HasSubstr("-n (--num-gpus) contradicts " + filter));
  }
}

TEST(LaunchHostfile, FaultsAreNamedByFileLineAndReason) {
  const TestFolder folder;
  const std::string file = folder / "hosts";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"localhost slots=many\n", ":1:17: invalid value 'many' for slots"},
      {"localhost slots=0\r\n", ":1:17: invalid value '0' for slots"},
      {"a slots=1\na slots=1\n", ":2:1: host a is listed twice, first in line 1"},
      {"", ":1:1: names no host"},
      {"-oProxyCommand=touch${IFS}/tmp/pwned slots=1\n", ":1:1: "},
      {"localhost;touch${IFS}/tmp/pwned slots=1\n", "holds ';'"},
      {"$(touch${IFS}/tmp/pwned) slots=1\n", "holds '$'"}};
  for (const auto& [text, message] : cases) {
    write_text(file, text);
    const Outcome outcome = run_clean({"launch", "--hostfile", file, "sh", "-c", "echo started"});
    EXPECT_EQ(outcome.code, 2) << text;
    EXPECT_THAT(outcome.err, HasSubstr(message)) << text;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_FALSE(std::filesystem::exists("/tmp/pwned"));
  write_text(file, "localhost slots=1\n");
  const Outcome filter = run_clean({"launch", "--hostfile", file, "-e", "localhst", "true"});
  EXPECT_EQ(filter.code, 2);
  EXPECT_THAT(filter.err, HasSubstr("did you mean 'localhost'?"));
  const Outcome missing = run_clean({"launch", "--hostfile", file + "2", "true"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr(file + "2 cannot be read"));
}

TEST(LaunchDryRun, ListsHostsAndRanksAndStartsNothing) {
  const TestFolder folder;
  const std::string file = write_text(folder / "hosts", "localhost slots=1\nother slots=2\n");
  const std::string made = folder / "made";
  const Outcome outcome = run_clean(
      {"launch",
       "--hostfile",
       file,
       "--dry-run",
       "--json",
       "--cpu-bind",
       "cores",
       "--env",
       "A=b",
       "touch",
       made});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto object = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(object["schema"], "lockstep.launch/1");
  EXPECT_EQ(object["world_size"], 3);
  EXPECT_EQ(object["hosts"][1]["name"], "other");
  EXPECT_EQ(object["hosts"][1]["ranks"][1]["environment"]["RANK"], "2");
  EXPECT_EQ(object["hosts"][0]["ranks"][0]["environment"]["A"], "b");
  EXPECT_FALSE(object["hosts"][0]["ranks"][0]["cores"].empty());
  EXPECT_FALSE(std::filesystem::exists(made));
  const Outcome text = run_clean(launch("2", {"--dry-run", "touch", made}));
  EXPECT_THAT(text.out, HasSubstr("2 ranks on 1 host; nothing was started\n"));
  EXPECT_FALSE(std::filesystem::exists(made));
  const Outcome wrong = run_clean(launch("x", {"--dry-run", "--json", "true"}));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(
      nlohmann::json::parse(wrong.out)["error"].get<std::string>(),
      HasSubstr("invalid value 'x' for -n"));
}

TEST(LaunchBinding, TiesEachRankToItsCores) {
  const Outcome plan =
      run_clean(launch("2", {"--dry-run", "--json", "--cpu-bind", "cores", "true"}));
  const auto object = nlohmann::json::parse(plan.out);
  const Outcome outcome = run_clean(launch(
      "2",
      {"--quiet",
       "--bind_cores_to_rank",
       "sh",
       "-c",
       "echo $RANK: $(grep Cpus_allowed_list /proc/self/status)"}));
  for (const int rank : {0, 1}) {
    const auto cores = object["hosts"][0]["ranks"][rank]["cores"].get<std::vector<int>>();
    ASSERT_FALSE(cores.empty());
    EXPECT_THAT(
        outcome.out,
        ContainsRegex(
            std::to_string(rank) + ": Cpus_allowed_list: " + std::to_string(cores.front())));
  }
  EXPECT_EQ(run_clean(launch("2", {"--cpu-bind", "numa", "true"})).code, 0);
}

TEST(LaunchVariables, ComeFromFlags) {
  const Outcome outcome = run_clean(
      launch(
          "1",
          {"--env",
           "A=b c",
           "--env",
           "GIVEN",
           "--mixed_precision",
           "bf16",
           "--gradient_accumulation_steps",
           "4",
           "--zero_stage",
           "3",
           "--debug",
           "--gpu_ids",
           "1,2",
           "--role",
           "r",
           "--join-timeout",
           "2",
           "--quiet",
           kFixture,
           "environment"}),
      {"GIVEN=by us", "RANK=abc", "LOCKSTEP_MIXED_PRECISION=fp16"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* variable :
       {"A=b c",
        "GIVEN=by us",
        "RANK=0",
        "ACCELERATE_MIXED_PRECISION=bf16",
        "LOCKSTEP_MIXED_PRECISION=bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4",
        "LOCKSTEP_ZERO_STAGE=3",
        "LOCKSTEP_DEBUG_MODE=1",
        "CUDA_VISIBLE_DEVICES=1,2",
        "ROLE_NAME=r",
        "LOCKSTEP_JOIN_TIMEOUT_MS=2000"}) {
    EXPECT_THAT(outcome.out, HasSubstr("0: " + std::string(variable) + "\n"));
  }
}

TEST(LaunchProgramKind, RunsModulesAndBinariesOnRequest) {
  const TestFolder folder;
  write_text(
      folder / "train_module.py", "import os, sys\nprint(os.environ['RANK'], sys.argv[1:])\n");
  const Outcome module = run_clean(
      launch("1", {"--quiet", "-m", "train_module", "-n", "3"}),
      {"PYTHONPATH=" + folder.path().string()});
  EXPECT_EQ(module.out, "0 ['-n', '3']\n") << module.err;
  const std::string script = write_text(folder / "binary.py", "#!/bin/sh\necho shell $RANK\n");
  ASSERT_EQ(::chmod(script.c_str(), 0755), 0);
  EXPECT_EQ(run_clean(launch("1", {"--quiet", "--no_python", script})).out, "shell 0\n");
  const Outcome both = run_clean(launch("1", {"-m", "--no-python", "x"}));
  EXPECT_EQ(both.code, 2);
}

TEST(LaunchAlias, RunsPythonProgramsByTheModuleOfTheAliases) {
  const auto plan = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"--alias", "--dry-run"});
    return run_clean(launch("1", words), {"LOCKSTEP_PYTHON=/bin/sh"});
  };
  EXPECT_THAT(
      plan({"train.py", "-n"}).out, HasSubstr("command:  /bin/sh -m lockstep.alias train.py -n\n"));
  EXPECT_THAT(
      plan({"-m", "package.train"}).out,
      HasSubstr("command:  /bin/sh -m lockstep.alias -m package.train\n"));
  const Outcome binary = plan({"./train"});
  EXPECT_EQ(binary.code, 2);
  EXPECT_THAT(binary.err, HasSubstr("--alias needs a Python script or module, and './train'"));
  EXPECT_EQ(plan({"--no-python", "train.py"}).code, 2);
}

TEST(LaunchFlags, OfTorchrunAccelerateAndDeepSpeedMeanTheSame) {
  const std::vector<std::vector<std::string>> calls = {
      {"--standalone", "--nnodes=1", "--nproc_per_node=2"},
      {"--nnodes=1:1", "--nproc-per-node", "2", "--rdzv_backend=c10d", "--rdzv_id=job"},
      {"--nproc_per_node",
       "2",
       "--node_rank",
       "0",
       "--master_addr",
       "127.0.0.1",
       "--max_restarts",
       "1"},
      {"--nproc_per_node",
       "2",
       "--rdzv-endpoint",
       "localhost:0",
       "--rdzv-conf",
       "join_timeout=60,timeout=30",
       "--shutdown_timeout",
       "5"},
      {"--num_processes",
       "2",
       "--num_machines",
       "1",
       "--machine_rank",
       "0",
       "--main_process_ip",
       "localhost",
       "--main_process_port",
       "0",
       "--mixed_precision",
       "no",
       "--cpu"},
      {"--num_gpus", "2", "--bind_cores_to_rank"}};
  for (std::vector<std::string> words : calls) {
    words.insert(words.begin(), "launch");
    words.insert(words.end(), {"--quiet", "sh", "-c", "echo $WORLD_SIZE"});
    const Outcome outcome = run_clean(words);
    EXPECT_EQ(outcome.out, "2\n2\n") << testing::PrintToString(words) << outcome.err;
  }
}

TEST(LaunchFlags, ThatMeanNothingHereAreRefusedWithTheReason) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--use_fsdp"}, "or --zero-stage: 3 is FULL_SHARD"},
      {{"--zero-stage", "4"}, "--zero-stage"},
      {{"--tpu"}, "Lockstep has no TPU backend"},
      {{"--dynamo_backend", "inductor"}, "torch.compile"},
      {{"--virtual-local-rank"}, "every rank has its real LOCAL_RANK"},
      {{"--monitor-interval", "5"}, "noticed at once"},
      {{"--rdzv-backend", "etcd"}, "--rdzv-backend etcd is not supported"},
      {{"--rdzv-conf", "last_call_timeout=3"}, "--rdzv-conf last_call_timeout has no effect"},
      {{"--rdzv-conf", "join_timeout=x"}, "invalid value 'x' for join_timeout of --rdzv-conf"},
      {{"--nnodes", "1:4"}, "varying number of hosts"},
      {{"--num-processes", "2"}, "give only one"},
      {{"--numa-binding", "exclusive"}, "expected node"},
      {{"--cpu-bind", "core"}, "did you mean 'cores'?"},
      {{"--mixed-precision", "bf61"},
       "[lockstep launch] invalid value 'bf61' for --mixed-precision; expected one of no, fp16, "
       "bf16; did you mean 'bf16'?\n"},
      {{"--zero-stage", "4"}, "invalid value '4' for --zero-stage; expected one of 0, 1, 2, 3\n"},
      {{"--timeout", "-1"},
       "[lockstep launch] invalid value '-1' for --timeout; expected seconds from 0.001 to "
       "31622400\n"},
      {{"--timeout", "1", "--timeout", "2"},
       "--timeout was given more than once; expected it once"},
      {{"-n", "3"}, "-n (--nproc-per-node) was given more than once; expected it once"},
      {{"-np", "2"},
       "unknown option -np; lockstep launch --help lists the options; did you mean '-n'?"},
      {{"-hostfile", "hosts"}, "unknown option -hostfile; did you mean '--hostfile'?"},
      {{"--signals-to-handle", "SIGKILL"}, "invalid value 'SIGKILL' for --signals-to-handle"},
      {{"--standalone", "--master-port", "1234"}, "--standalone means one host"},
      {{"--rdzv-endpoint", "localhost:99999"}, "a port from 0 to 65535"},
      {{"--env", "RANK=3"}, "is set by the launcher itself"},
      {{"--env", "NO_SUCH_VARIABLE_HERE"}, "no such variable in the environment"},
      {{"--nnodes", "2", "--master-addr", "localhost"}, "LOCKSTEP_JOB_TOKEN is not set"},
      {{"--max-restarts", "-1"}, "-1"},
      {{"--timeout", "0"}, "--timeout"},
      {{"--tee", "5"}, "invalid value '5' for --tee"},
      {{"--rdzv-id", "../up"}, "invalid value '../up' for --rdzv-id"},
      {{"--node-rank", "1"}, "expected 0 to 0"}};
  for (const auto& [flags, message] : cases) {
    std::vector<std::string> words = flags;
    words.insert(words.end(), {"sh", "-c", "echo started"});
    const Outcome outcome = run_clean(launch("2", words));
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(flags);
    EXPECT_THAT(outcome.err, HasSubstr(message)) << testing::PrintToString(flags);
    EXPECT_EQ(outcome.out, "") << testing::PrintToString(flags);
  }
}

TEST(LaunchFlags, TooLowALimitOfTheShellIsNamed) {
  const std::string lockstep = std::string(LOCKSTEP_BIN_DIR) + "/lockstep";
  const auto err_under = [&](const std::string& limit) {
    LockstepRun run(
        {"-c", "ulimit " + limit + "; exec \"$0\" launch -n 2 true", lockstep}, {}, "", "/bin/sh");
    const Outcome outcome = run.wait();
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("no memory")));
    return outcome.err;
  };
  EXPECT_THAT(
      err_under("-n 8"),
      HasSubstr("Too many open files; the limit of this process is 8; raise it with `ulimit -n`"));
  EXPECT_THAT(err_under("-f 10"), HasSubstr("raise it with `ulimit -f`"));
}

TEST(LaunchFlags, TheHelpIsInGroups) {
  const std::string help = run_lockstep({"launch", "--help"}).out;
  for (const char* group : {"Job:", "Several hosts:", "Monitoring:", "Output:", "Environment:"}) {
    EXPECT_THAT(help, HasSubstr(group));
  }
  EXPECT_THAT(help, Not(HasSubstr("fsdp")));
}

TEST(LaunchFlags, TheHelpFitsIntoATerminal) {
  const std::string help = run_lockstep({"launch", "--help"}).out;
  EXPECT_THAT(help, HasSubstr("  -H, --hostfile, --deepspeed-hostfile FILE\n"));
  EXPECT_THAT(
      std::regex_replace(help, std::regex("\n {30}"), " "),
      HasSubstr("(default: the program decides) [one of no, fp16, bf16]\n"));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
  }
}

TEST(LaunchSignals, ThoseNotAskedForAreNotPassedOn) {
  LockstepRun run(launch("2", {"--signals-to-handle", "SIGTERM,INT", kFixture, "save"}));
  run.await_out("ready", 2);
  run.send(SIGUSR1);
  EXPECT_EQ(run.wait().code, 128 + SIGUSR1);
  EXPECT_THAT(run.survivors(), IsEmpty());
}

TEST(LaunchPidFile, HoldsTheLaunchersPidAndIsRemovedAtItsEnd) {
  const TestFolder folder;
  const std::string file = folder / "pid";
  LockstepRun run(launch("2", {"--save-pid", file, kFixture, "save"}));
  run.await_out("ready", 2);
  EXPECT_EQ(contents(file), std::to_string(run.pid()) + "\n");
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().code, 75);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const Outcome refused =
      run_clean(launch("2", {"--save-pid", folder / "no/pid", "sh", "-c", "echo started"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
}

TEST(LaunchPort, TheHolderOfABusyPortIsNamed) {
  LockstepRun first(launch("1", {"sh", "-c", "echo port $MASTER_PORT; exec sleep 1000"}));
  first.await_out("\n");
  const std::string port = first.out().substr(5, first.out().find('\n') - 5);
  const Outcome second = run_clean(launch("2", {"--master-port", port, "true"}));
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(
      second.err,
      HasSubstr(
          "port " + port + " is reserved by another lockstep job (process " +
          std::to_string(first.pid()) + ", lockstep)"));
}

}  // namespace
}  // namespace lockstep::e2e
