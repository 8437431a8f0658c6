// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/settings/settings.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/base/text/split.h"

namespace lockstep::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::ThrowsMessage;

const Environment kNothing = Environment::of({});

Settings from_file(const std::string& text, const Environment& environment = kNothing) {
  return resolve({}, environment, parse_document("c.yaml", text, Format::kYaml));
}

Settings from_environment(const std::map<std::string, std::string>& variables) {
  return resolve({}, Environment::of(variables), std::nullopt);
}

std::string settings_error(const std::string& text) {
  return error_of([&] { from_file(text); });
}

TEST(Resolve, FlagBeforeEnvironmentBeforeFileBeforeDefault) {
  const Document file =
      parse_document("c.yaml", "max_restarts: 1\ngrace_seconds: 2\n", Format::kYaml);
  const std::map<std::string, std::string> variables = {{"LOCKSTEP_MAX_RESTARTS", "3"}};
  const FlagValue flag = {"max_restarts", "--max-restarts", "4"};

  const Settings all = resolve({flag}, Environment::of(variables), file);
  EXPECT_EQ(all.integer("max_restarts"), 4);
  EXPECT_EQ(all.at("max_restarts").origin, "--max-restarts");

  const Settings no_flag = resolve({}, Environment::of(variables), file);
  EXPECT_EQ(no_flag.integer("max_restarts"), 3);
  EXPECT_EQ(no_flag.at("max_restarts").origin, "LOCKSTEP_MAX_RESTARTS");

  const Settings file_only = resolve({}, kNothing, file);
  EXPECT_EQ(file_only.integer("max_restarts"), 1);
  EXPECT_EQ(file_only.at("max_restarts").origin, "c.yaml:1:1");
  EXPECT_EQ(file_only.seconds("grace_seconds"), 2.0);

  const Settings nothing = resolve({}, kNothing, std::nullopt);
  EXPECT_EQ(nothing.integer("max_restarts"), 0);
  EXPECT_EQ(nothing.at("max_restarts").origin, "default");
}

TEST(Resolve, AnUnmentionedSettingIsNotSet) {
  const Settings settings = resolve({}, kNothing, std::nullopt);
  EXPECT_FALSE(settings.is_set("mixed_precision"));
  EXPECT_EQ(settings.text("hostfile"), std::nullopt);
  EXPECT_EQ(settings.integer("main_process_port"), std::nullopt);
  EXPECT_EQ(settings.seconds("timeout_seconds"), std::nullopt);
  EXPECT_FALSE(settings.boolean("debug"));
  EXPECT_THAT(settings.variables(), IsEmpty());
  EXPECT_THROW(settings.at("no_such_setting"), Error);
}

TEST(Resolve, NoIsTextAndOnIsTrue) {
  const Settings settings = from_file("mixed_precision: no\ndebug: on\ninclude: no\n");
  EXPECT_EQ(settings.text("mixed_precision"), "no");
  EXPECT_TRUE(settings.boolean("debug"));
  EXPECT_EQ(settings.text("include"), "no");
}

TEST(Resolve, ProcessesAreANumberOrAWord) {
  EXPECT_EQ(from_file("num_processes: 8\n").integer("num_processes"), 8);
  const Settings settings = from_file("num_processes: \"auto\"\n");
  EXPECT_EQ(settings.integer("num_processes"), std::nullopt);
  EXPECT_EQ(settings.text("num_processes"), "auto");
}

TEST(Resolve, NumbersAreDecimalAndTheMessageHasTheRemedy) {
  EXPECT_THAT(
      settings_error("debug: true\nmax_restarts: 1e3\n"),
      AllOf(
          StartsWith("[c.yaml:2:15] invalid value '1e3' for max_restarts; expected a whole "),
          HasSubstr("from 0 to 1000; write 1000")));
  EXPECT_THAT(settings_error("max_restarts: 0x10\n"), HasSubstr("; write 16"));
  EXPECT_THAT(settings_error("max_restarts: 1_0\n"), HasSubstr("; write 10"));
  EXPECT_THAT(settings_error("max_restarts: 010\n"), HasSubstr("; write 10"));
  EXPECT_THAT(settings_error("grace_seconds: 1e1\n"), HasSubstr("; write 10"));
  EXPECT_THAT(
      settings_error("max_restarts: -1\n"),
      HasSubstr("invalid value '-1' for max_restarts; expected"));
  EXPECT_THAT(
      settings_error("max_restarts: 1001\n"),
      HasSubstr("invalid value '1001' for max_restarts; expected"));
  EXPECT_THAT(settings_error("grace_seconds: -1\n"), HasSubstr("expected seconds from 0 to"));
  EXPECT_THAT(settings_error("main_process_port: 65536\n"), HasSubstr("from 0 to 65535"));
}

TEST(Resolve, UnknownKeysAreNamedWithTheLikeliest) {
  EXPECT_THAT(
      settings_error("debug: true\nnum_procesess: 2\n"),
      StartsWith("[c.yaml:2:1] unknown key 'num_procesess'; did you mean 'num_processes'?"));
  EXPECT_THAT(settings_error("zzz: 2\n"), StartsWith("[c.yaml:1:1] unknown key 'zzz'"));
  EXPECT_THAT(
      settings_error("launcher: shh\n"),
      HasSubstr("one of local, ssh, openmpi, slurm; did you mean 'ssh'"));
}

TEST(Resolve, ValuesOfAnotherTypeAreRefused) {
  EXPECT_THAT(
      settings_error("num_processes: \"2\"\n"),
      AllOf(StartsWith("[c.yaml:1:16]"), HasSubstr("got the text '2'"), HasSubstr("quotes")));
  EXPECT_THAT(settings_error("debug: 'true'\n"), HasSubstr("remove the quotes"));
  EXPECT_THAT(
      settings_error("num_processes: [2]\n"), HasSubstr("got a list, expected a whole number"));
  EXPECT_THAT(settings_error("num_processes:\n  a: 2\n"), HasSubstr("got a map, expected"));
  EXPECT_THAT(settings_error("num_processes:\n"), HasSubstr("got nothing, expected"));
  EXPECT_THAT(
      settings_error("debug: 2\n"),
      HasSubstr("invalid value '2' for debug; expected true or false"));
  EXPECT_THAT(
      settings_error("hostfile: ''\n"),
      HasSubstr("invalid value '' for hostfile; expected a path"));
  EXPECT_THAT(settings_error("redirects: 4\n"), HasSubstr("3 both"));
  EXPECT_THAT(
      settings_error("main_process_ip: -oProxyCommand=x\n"), HasSubstr("address of a host"));
  EXPECT_THAT(settings_error("- 1\n"), StartsWith("[c.yaml:1:1] invalid settings; got a list"));
  EXPECT_THAT(settings_error("num_processes 2\n"), HasSubstr("got 'num_processes 2'"));
}

TEST(Resolve, TheFileIsCheckedEvenWhereOverridden) {
  const Document file = parse_document("c.yaml", "max_restarts: x\n", Format::kYaml);
  EXPECT_THROW(resolve({{"max_restarts", "--max-restarts", "1"}}, kNothing, file), ConfigError);
}

TEST(Resolve, FlagsAndVariablesAreCheckedLikeTheFile) {
  EXPECT_THAT(
      [] {
        resolve({{"launcher", "--launcher", "pdsh"}}, kNothing, std::nullopt);
      },
      ThrowsMessage<ConfigError>(StartsWith("[--launcher] invalid value 'pdsh' for launcher; ")));
  EXPECT_THAT(
      [] {
        from_environment({{"LOCKSTEP_MAX_RESTARTS", "many"}});
      },
      ThrowsMessage<ConfigError>(
          StartsWith("[environment] invalid value 'many' for LOCKSTEP_MAX_RESTARTS; ")));
}

TEST(Resolve, ReadsTheVariablesThatProgramsRead) {
  const Settings settings = from_environment(
      {{"ACCELERATE_MIXED_PRECISION", "bf16"},
       {"LOCKSTEP_GRADIENT_ACCUMULATION_STEPS", "2"},
       {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
       {"ACCELERATE_DEBUG_MODE", "True"},
       {"OMP_NUM_THREADS", "4,2"},
       {"LOCKSTEP_JOIN_TIMEOUT_MS", "1500"}});
  EXPECT_EQ(settings.text("mixed_precision"), "bf16");
  EXPECT_EQ(settings.at("mixed_precision").origin, "ACCELERATE_MIXED_PRECISION");
  EXPECT_EQ(settings.integer("gradient_accumulation_steps"), 2);
  EXPECT_TRUE(settings.boolean("debug"));
  EXPECT_EQ(settings.text("num_cpu_threads_per_process"), "4,2");
  EXPECT_EQ(settings.seconds("join_timeout_seconds"), 1.5);
  EXPECT_EQ(
      from_environment({{"LOCKSTEP_JOIN_TIMEOUT_MS", "20000"}}).text("join_timeout_seconds"), "20");
}

TEST(Resolve, VariablesOfTheProcessesAreAlwaysText) {
  const Document file =
      parse_document("c.yaml", "env:\n  A: no\n  B: 1e3\n  C: ''\n", Format::kYaml);
  const Settings settings = resolve({}, kNothing, file);
  std::string all;
  for (const auto& [name, value] : settings.variables()) {
    all += name + "='" + value.text + "' " + value.origin + "; ";
  }
  EXPECT_EQ(all, "A='no' c.yaml:2:3; B='1e3' c.yaml:3:3; C='' c.yaml:4:3; ");
}

TEST(Resolve, VariablesThatALaunchSetsItselfAreRefused) {
  EXPECT_THAT(
      settings_error("env: {RANK: 1}\n"),
      StartsWith("[c.yaml:1:7] RANK is set by lockstep launch"));
  EXPECT_THAT(
      settings_error("env:\n  LOCKSTEP_FLIGHT: x\n"),
      StartsWith("[c.yaml:2:3] LOCKSTEP_FLIGHT is set by lockstep launch"));
  EXPECT_THAT(settings_error("env: {SLURM_PROCID: 0}\n"), HasSubstr("is set by lockstep launch"));
  EXPECT_THAT(
      settings_error("env: {a-b: 1}\n"),
      HasSubstr("invalid name 'a-b' for a variable; expected letters"));
  EXPECT_THAT(settings_error("env: [A=1]\n"), HasSubstr("got a list, expected a map"));
  EXPECT_THAT(settings_error("env: {A: }\n"), HasSubstr("invalid value for env: A; got nothing"));
}

TEST(Resolve, TheRankOfAMachineMustHaveAPlace) {
  EXPECT_EQ(from_file("num_machines: 2\nmachine_rank: 1\n").integer("machine_rank"), 1);
  EXPECT_THAT(
      settings_error("machine_rank: 1\n"),
      StartsWith("[c.yaml:1:1] invalid value 1 for machine_rank; expected less than "
                 "num_machines, which is 1 (default)"));
}

TEST(Resolve, TildeIsHome) {
  const Environment environment = Environment::of({{"HOME", "/home/me"}});
  EXPECT_EQ(from_file("hostfile: ~/hosts\n", environment).text("hostfile"), "/home/me/hosts");
  EXPECT_EQ(from_file("hostfile: /a~/hosts\n", environment).text("hostfile"), "/a~/hosts");
  EXPECT_THAT(settings_error("hostfile: ~/hosts\n"), HasSubstr("HOME is not set"));
}

TEST(FaultsOf, NamesThemAll) {
  const Document file = parse_document(
      "c.yaml", "num_procs: 2\nmax_restarts: x\ndebug: true\nlauncher: [ssh]\n", Format::kYaml);
  EXPECT_THAT(
      faults_of(file),
      ElementsAre(
          StartsWith("[c.yaml:1:1]"), StartsWith("[c.yaml:2:15]"), StartsWith("[c.yaml:4:11]")));
  EXPECT_THAT(faults_of(parse_document("c.yaml", "hostfile: ~/h\n", Format::kYaml)), IsEmpty());
  EXPECT_THAT(
      faults_of(parse_document("c.yaml", "machine_rank: 3\n", Format::kYaml)),
      ElementsAre(HasSubstr("num_machines")));
}

TEST(AllSettings, HaveDefaultsThatMakeSense) {
  std::set<std::string> variables;
  for (const SettingSpec& spec : all_settings()) {
    EXPECT_EQ(find_setting(spec.name), &spec);
    EXPECT_TRUE(spec.flag.starts_with("--")) << spec.name;
    EXPECT_NE(spec.default_value.empty(), spec.unset.empty()) << spec.name;
    if (!spec.default_value.empty()) {
      EXPECT_NO_THROW(check_value(spec, spec.default_value, "default", spec.name));
    }
    for (const std::string& name : spec.variables) {
      EXPECT_TRUE(variables.insert(name).second) << name << " sets two settings";
    }
  }
}

/// Paste the printed table into the page if they differ.
TEST(AllSettings, AreWhatTheDocumentationSays) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/configuration.md");
  std::stringstream page;
  page << file.rdbuf();
  const std::string table = render_setting_table();
  EXPECT_TRUE(page.str().find("\n" + table + "\n") != std::string::npos) << table;
  for (const SettingSpec& spec : all_settings()) {
    std::string row = "| `" + spec.name + "` | `" + spec.flag + "` |";
    for (const std::string& name : spec.variables) {
      row += (row.back() == '|' ? " `" : ", `") + name + "`";
    }
    EXPECT_THAT(table, HasSubstr(row + " |"));
  }
}

TEST(AllFlags, AreSpelledOnceAndHaveAMember) {
  std::set<std::string> spellings;
  for (const SettingSpec& spec : all_flags()) {
    for (const std::string& flag : split(spec.flags, ',')) {
      EXPECT_TRUE(spellings.insert(flag).second) << flag << " is the flag of two settings";
    }
    EXPECT_FALSE(spec.member.index() == 0 && spec.text.index() == 0) << spec.flag;
    EXPECT_FALSE(spec.description.empty() || spec.description.ends_with('.')) << spec.flag;
    const bool is_switch = spec.type == SettingType::kBoolean;
    EXPECT_EQ(spec.placeholder.empty(), is_switch) << spec.flag;
  }
  for (const SettingSpec& spec : all_flags()) {
    for (const std::string& flag : spec.overriding_flags) {
      EXPECT_EQ(spellings.count(flag), 1U) << flag << " overrides " << spec.name;
    }
  }
}

/// Each text reaches the member that its row names, as its type.
TEST(SetValue, StoresATextInTheMemberOfTheRow) {
  LaunchFlags flags;
  const auto set = [&flags](const char* name, const char* text) {
    set_value(*find_setting(name), text, flags);
  };
  set("max_restarts", "3");
  set("grace_seconds", "0.5");
  set("debug", "yes");
  set("zero_stage", "2");
  set("num_machines", "2");
  set("num_cpu_threads_per_process", "4");
  EXPECT_EQ(flags.options.max_restarts, 3);
  EXPECT_EQ(flags.options.grace_seconds, 0.5);
  EXPECT_TRUE(flags.options.debug);
  EXPECT_EQ(flags.options.zero_stage, "2");
  EXPECT_EQ(flags.nnodes, "2");
  EXPECT_EQ(flags.options.threads_per_rank, 4);
  set("num_cpu_threads_per_process", "4,2");
  ASSERT_EQ(flags.options.env.size(), 1U);
  EXPECT_EQ(flags.options.env[0].name + "=" + flags.options.env[0].value, "OMP_NUM_THREADS=4,2");
}

}  // namespace
}  // namespace lockstep::config
