// SPDX-License-Identifier: Apache-2.0
// `lockstep config`: files, output, errors and exit codes; cases 55 to 57 of the table of faults.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/program/test_pty.h"
#include "lockstep/base/test_folder.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;

class ConfigCommands : public testing::Test {
 protected:
  std::vector<std::string> own_configuration() const {
    return {"XDG_CONFIG_HOME=" + folder_.path().native()};
  }

  /// Runs `lockstep config ...` with the user's configuration in the test's folder.
  Outcome config(
      std::vector<std::string> words,
      const std::vector<std::string>& more = {},
      const std::string& input = "") {
    std::vector<std::string> variables = own_configuration();
    variables.insert(variables.end(), more.begin(), more.end());
    words.insert(words.begin(), "config");
    return run_lockstep(words, variables, input);
  }

  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).native();
  }

  fs::path default_path() const { return folder_.path() / "lockstep" / "config.yaml"; }

  TestFolder folder_;
};

TEST_F(ConfigCommands, DefaultWritesOnceAndShowPrintsTheOrigin) {
  const Outcome first = config({"default", "--mixed-precision", "bf16"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, "wrote " + default_path().native() + "; lockstep launch reads it\n");
  struct stat status {};
  ASSERT_EQ(::stat(default_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);

  const Outcome second = config({"default"});
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.err, HasSubstr("the configuration exists and is not changed"));
  EXPECT_THAT(contents(default_path()), HasSubstr("\nmixed_precision: bf16\n"));
  EXPECT_EQ(config({"default", "--force"}).code, 0);
  EXPECT_THAT(contents(default_path()), HasSubstr("\nmixed_precision: \"no\"\n"));

  const Outcome shown =
      config({"show"}, {"LOCKSTEP_MAX_RESTARTS=3", "ACCELERATE_MIXED_PRECISION=fp16"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(
      shown.out,
      AllOf(
          StartsWith("configuration: " + default_path().native() + "\n"),
          ContainsRegex("\n  num_processes +auto +" + default_path().native() + ":[0-9]+:1\n"),
          ContainsRegex("\n  max_restarts +3 +LOCKSTEP_MAX_RESTARTS\n"),
          ContainsRegex("\n  mixed_precision +fp16 +ACCELERATE_MIXED_PRECISION\n"),
          ContainsRegex("\n  grace_seconds +30 +default\n")));

  const Json json = Json::parse(config({"show", "--json"}).out);
  EXPECT_EQ(json["schema"], "lockstep.config.show/1");
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["config_file"], default_path().native());
}

TEST_F(ConfigCommands, ShowWithoutAFileAndWithOneThatIsMissing) {
  EXPECT_THAT(config({"show"}).out, StartsWith("configuration: no file\n"));
  const Outcome missing = config({"show", "--config-file", "/absent/c.yaml"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("[/absent/c.yaml] no such file"));
  const Outcome variable = config({"show"}, {"LOCKSTEP_CONFIG_FILE=/absent/d.yaml"});
  EXPECT_EQ(variable.code, 2);
  EXPECT_THAT(variable.err, HasSubstr("named by LOCKSTEP_CONFIG_FILE"));
}

TEST_F(ConfigCommands, AnUnwritableFileIsAFailure) {
  const Outcome outcome = config({"default", "--config-file", "/proc/none/c.yaml"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot be written"));
}

TEST_F(ConfigCommands, ValidateNamesEveryFault) {
  const std::string good = file("good.yaml", "num_processes: 2\nmixed_precision: no\n");
  const std::string bad = file("bad.yaml", "num_procesess: 2\nmax_restarts: 1e3\n");
  const Outcome outcome = config({"validate", good, bad});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(
      outcome.out,
      good + ": valid, 2 settings\n" + bad + ": 2 errors\n  [" + bad +
          ":1:1] unknown key 'num_procesess'; did you mean 'num_processes'?\n  [" + bad +
          ":2:15] invalid value '1e3' for max_restarts; expected a whole number from 0 to 1000; "
          "write 1000\n");
  const Outcome json = config({"validate", "--json", good, bad});
  EXPECT_EQ(json.code, 2);
  EXPECT_THAT(Json::parse(json.out)["files"][0]["faults"], IsEmpty());
  EXPECT_EQ(Json::parse(json.out)["files"][1]["faults"].size(), 2U);
  EXPECT_EQ(config({"validate", good}).code, 0);
  EXPECT_THAT(config({"validate"}).out, HasSubstr("cannot be read; No such file"));
}

TEST_F(ConfigCommands, ImportTakesAcceleratesFile) {
  const std::string golden = LOCKSTEP_SOURCE_DIR "/tests/golden/config/";
  const Outcome outcome = config({"import", golden + "multi_cpu.yaml"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("wrote " + default_path().native()),
          HasSubstr("note: use_cpu: an empty CUDA_VISIBLE_DEVICES hides all GPUs\n"),
          HasSubstr("note: ignored: downcast_bf16, main_training_function, ")));
  EXPECT_THAT(
      config({"show"}).out,
      AllOf(
          ContainsRegex("\n  main_process_ip +10.0.0.1 +/"),
          ContainsRegex("\n  mixed_precision +bf16 +/")));
  EXPECT_EQ(config({"import", golden + "multi_gpu.yaml"}).code, 2);

  const Outcome json = config({"import", golden + "multi_gpu.yaml", "--force", "--json"});
  ASSERT_EQ(json.code, 0) << json.out;
  EXPECT_EQ(Json::parse(json.out)["settings"]["num_processes"], "2");
  EXPECT_EQ(Json::parse(json.out)["env"]["CUDA_VISIBLE_DEVICES"], "0,2");

  const Outcome refused = config({"import", golden + "tpu.yaml", "--force"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("tpu.yaml:3:19] distributed_type XLA cannot be imported"));
  EXPECT_THAT(contents(default_path()), HasSubstr("CUDA_VISIBLE_DEVICES: \"0,2\""));

  EXPECT_EQ(config({"import", golden + "fsdp.yaml", "--force"}).code, 0);
  EXPECT_THAT(contents(default_path()), HasSubstr("\nzero_stage: 3\n"));
}

TEST_F(ConfigCommands, ImportFindsAcceleratesDefaultFile) {
  fs::create_directories(folder_ / "hf" / "accelerate");
  file("hf/accelerate/default_config.yaml", "distributed_type: 'NO'\nmixed_precision: no\n");
  const Outcome outcome = config({"import"}, {"HF_HOME=" + (folder_ / "hf").native()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(contents(default_path()), HasSubstr("\nmixed_precision: \"no\"\n"));
}

TEST_F(ConfigCommands, ImportNamesTheDefaultFileThatDoesNotExist) {
  const Outcome outcome = config({"import"}, {"HF_HOME=" + (folder_ / "hf").native()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err,
      HasSubstr(
          "Accelerate's file does not exist; expected " +
          (folder_ / "hf/accelerate/default_config.yaml").native()));
}

TEST_F(ConfigCommands, QuestionsThroughAPipe) {
  const Outcome outcome = config({}, {}, "1\ngpu\nbf16\nstage 3\n2\nnone\nyes\n\n");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("How many processes?\n  1) auto: "),
          HasSubstr("wrote " + default_path().native() + "; lockstep launch reads it\n")));
  EXPECT_THAT(
      config({"show"}).out,
      AllOf(
          ContainsRegex("\n  num_processes +gpu +/"),
          ContainsRegex("\n  zero_stage +3 +/"),
          ContainsRegex("\n  max_restarts +2 +/"),
          ContainsRegex("\n  debug +true +/")));
  const Outcome again = config({}, {}, "\n\n\n\n\n\n\n\n");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("replaced "));
  EXPECT_THAT(config({"show"}).out, ContainsRegex("\n  mixed_precision +bf16 +/"));
}

TEST_F(ConfigCommands, AnswersThatEndEarlyWriteNothing) {
  const Outcome outcome = config({}, {}, "1\n");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(
      outcome.err, HasSubstr("the input ended at the question 'How many processes?'; nothing was"));
  EXPECT_FALSE(fs::exists(default_path()));
}

class ConfigOnATerminal : public ConfigCommands {
 protected:
  TestPty start() {
    const std::string home = folder_.path().native();
    return TestPty([home] {
      ::setenv("XDG_CONFIG_HOME", home.c_str(), 1);
      ::setenv("TERM", "xterm", 1);
      ::unsetenv("LOCKSTEP_CONFIG_FILE");
      ::execl(LOCKSTEP_BIN_DIR "/lockstep", "lockstep", "config", nullptr);
      return 127;
    });
  }
};

TEST_F(ConfigOnATerminal, AnswersWithArrowKeys) {
  TestPty pty = start();
  pty.await("machines will the job use? [1]: ");
  pty.type("\r");
  pty.await("  a number");
  pty.type("\x1b[B\r");
  pty.await("  bf16");
  pty.type("\x1b[A\r");
  pty.await("  stage 3");
  pty.type("\r");
  pty.await("restarted? [0]: ");
  pty.type(
      "9\x7f"
      "1\r");
  pty.await("logged? [none]: ");
  pty.type("\r");
  pty.await("  yes");
  pty.type("\r");
  pty.await("ds_config.json should programs use? [none]: ");
  pty.type("\r");
  pty.await("wrote ");
  EXPECT_EQ(pty.wait(), 0);
  EXPECT_THAT(
      contents(default_path()),
      AllOf(
          HasSubstr("\nnum_processes: gpu\n"),
          HasSubstr("\nmixed_precision: bf16\n"),
          HasSubstr("\nmax_restarts: 1\n"),
          HasSubstr("\n# debug: false\n")));
}

TEST_F(ConfigOnATerminal, CtrlCEndsItWith130AndWritesNothing) {
  for (const bool at_menu : {false, true}) {
    TestPty pty = start();
    pty.await("machines will the job use? [1]: ");
    if (at_menu) {
      pty.type("\r");
      pty.await("  a number");
    }
    pty.type("\x03");
    EXPECT_EQ(pty.wait(), 130);
    EXPECT_FALSE(fs::exists(default_path()));
  }
}

/// Cases 55, 56 and 57: `show` and `validate` of a file with errors.
class BadConfig : public ConfigCommands {
 protected:
  /// Expects exit code 2 and one line that names the place, within ten seconds.
  void expect_refused(const std::string& name, const std::string& text, const std::string& what) {
    const std::string path = file(name, text);
    LockstepRun show({"config", "show", "--config-file", path}, own_configuration());
    const Outcome outcome = show.wait(std::chrono::seconds(10));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("error: [" + path + ":"));
    EXPECT_THAT(outcome.err, HasSubstr(what));
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_EQ(config({"validate", path}).code, 2);
  }
};

TEST_F(BadConfig, Case55MalformedYamlAndJson) {
  expect_refused("a.yaml", "num_processes: [1\n", ".yaml:2:1] invalid YAML");
  expect_refused("b.yaml", "debug: true\n  num_processes: 2\n", ".yaml:2:");
  expect_refused("c.yaml", "debug: \"yes\n", ".yaml:1:8] invalid YAML");
  expect_refused("d.yaml", "debug:\n\t- x\n", ".yaml:2:1] a tab");
  expect_refused("e.yaml", "just text\n", ".yaml:1:1] invalid settings");
  expect_refused("f.yaml", "debug: \xff\n", ".yaml:1:8] invalid UTF-8");
  expect_refused(
      "a.json", "{\"debug\": true,}", ".json:1:15] invalid JSON; got a comma before '}'");
  expect_refused("b.json", "{\"debug\": yes}", ".json:1:11] invalid JSON");
  expect_refused("c.json", "", ".json:1:1] invalid JSON");
}

TEST_F(BadConfig, Case56UnknownDuplicateAndMistypedKeys) {
  expect_refused(
      "a.yaml",
      "debug: true\nnum_procesess: 2\n",
      ".yaml:2:1] unknown key 'num_procesess'; did you mean 'num_processes'?");
  expect_refused(
      "b.yaml",
      "debug: true\ndebug: false\n",
      ".yaml:2:1] key 'debug' is given twice, first in line 1");
  expect_refused(
      "c.yaml", "num_processes: two\n", ".yaml:1:16] invalid value 'two' for num_processes");
  expect_refused(
      "d.yaml", "num_processes: {a: 2}\n", ".yaml:1:16] invalid value for num_processes");
  expect_refused("e.yaml", "num_processes: '2'\n", "remove the quotes");
  expect_refused("f.json", "{\"debug\": \"true\"}", ".json:1:11] invalid value for debug");
}

TEST_F(BadConfig, Case57NumbersThatReadersDisagreeOn) {
  expect_refused(
      "a.yaml", "num_processes: 1e3\n", ".yaml:1:16] invalid value '1e3' for num_processes");
  expect_refused("b.yaml", "num_processes: 0x10\n", "write 16");
  expect_refused(
      "c.json", "{\"num_processes\": 1e3}", ".json:1:19] invalid value '1e3' for num_processes");
  const std::string path = file("no.yaml", "mixed_precision: no\nenv: {A: no, B: 1e3, C: 0x10}\n");
  const Outcome outcome = config({"show", "--config-file", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          ContainsRegex("\n  mixed_precision +no +/"),
          ContainsRegex("\n  env: A +no +/"),
          ContainsRegex("\n  env: B +1e3 +/"),
          ContainsRegex("\n  env: C +0x10 +/")));
}

TEST_F(BadConfig, Case57BombsAndNests) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char name = 'b'; name < 'k'; ++name) {
    const std::string last = std::string("*") + static_cast<char>(name - 1);
    bomb += std::string(1, name) + ": &" + name + " [";
    for (int i = 0; i < 9; ++i) {
      bomb += last + ", ";
    }
    bomb += last + "]\n";
  }
  expect_refused("bomb.yaml", bomb, "too many values");
  const std::string lists = std::string(100'000, '[') + std::string(100'000, ']');
  expect_refused("nest.yaml", "a: " + lists, "nested too deep");
  expect_refused("nest.json", lists, "nested too deep");
  std::string maps;
  for (int i = 0; i < 100'000; ++i) {
    maps += "{a: ";
  }
  expect_refused("maps.yaml", maps + std::string(100'000, '}'), "nested too deep");
  expect_refused("open.yaml", maps, "open.yaml:1:");
  const std::string path = file("long.yaml", std::string(2'000'000, '#'));
  const Outcome outcome = config({"show", "--config-file", path});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("file too large; expected at most 1 MiB"));
}

TEST_F(BadConfig, IsReportedAsJson) {
  const std::string path = file("a.yaml", "zzz: 1\n");
  const Outcome outcome = config({"show", "--json", "--config-file", path});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(Json::parse(outcome.out)["error"], HasSubstr(path + ":1:1] unknown key 'zzz'"));
  EXPECT_EQ(Json::parse(outcome.out)["exit_code"], 2);
  const Outcome wrong = config({"show", "--json", "--jsno"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(Json::parse(wrong.out)["error"], HasSubstr("unknown option --jsno"));
}

}  // namespace
}  // namespace lockstep::e2e
