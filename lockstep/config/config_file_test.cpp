// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/config_file.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::config {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

size_t files_in(const fs::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) {
    ++count;
  }
  return count;
}

TEST(FindConfig, FlagThenVariableThenXdgThenHome) {
  std::map<std::string, std::string> variables = {
      {"HOME", "/h"}, {"XDG_CONFIG_HOME", "/x"}, {"LOCKSTEP_CONFIG_FILE", "~/mine.yaml"}};
  EXPECT_EQ(find_config("f.yaml", Environment::of(variables))->path, "f.yaml");
  EXPECT_EQ(find_config("f.yaml", Environment::of(variables))->chosen_by, "--config-file");
  EXPECT_EQ(find_config(std::nullopt, Environment::of(variables))->path, "/h/mine.yaml");
  variables.erase("LOCKSTEP_CONFIG_FILE");
  EXPECT_EQ(find_config(std::nullopt, Environment::of(variables))->path, "/x/lockstep/config.yaml");
  EXPECT_EQ(find_config(std::nullopt, Environment::of(variables))->chosen_by, "");
  variables["XDG_CONFIG_HOME"] = "relative";  // Which the specification says to ignore.
  EXPECT_EQ(
      find_config(std::nullopt, Environment::of(variables))->path,
      "/h/.config/lockstep/config.yaml");
  EXPECT_FALSE(find_config(std::nullopt, Environment::of({})).has_value());
}

TEST(ReadConfig, OnlyAChosenFileMustBeThere) {
  const TestFolder folder;
  const Environment home = Environment::of({{"HOME", folder.path().native()}});
  EXPECT_FALSE(read_config(std::nullopt, home).has_value());
  EXPECT_FALSE(read_config(std::nullopt, Environment::of({})).has_value());
  EXPECT_THAT(
      [&] { read_config((folder / "absent.yaml").native(), home); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("absent.yaml] no such file"), HasSubstr("named by --config-file"))));
  EXPECT_THAT(
      [] {
        read_config(std::nullopt, Environment::of({{"LOCKSTEP_CONFIG_FILE", "/absent/x"}}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("named by LOCKSTEP_CONFIG_FILE")));
  write_config(folder / ".config/lockstep/config.yaml", "debug: true\n", false);
  EXPECT_TRUE(read_config(std::nullopt, home)->root.find("debug") != nullptr);
}

TEST(RenderConfig, IsReadBackUnchanged) {
  const ConfigValues values = {
      .settings =
          {{"num_processes", "8"},
           {"mixed_precision", "no"},
           {"hostfile", "/a b/hosts: x"},
           {"grace_seconds", "0.5"},
           {"debug", "true"},
           {"redirects", "0:1,1:3"},
           {"tee", "3"}},
      .variables = {{"A", "no"}, {"B", ""}, {"C", "1e3 \"x\"\n"}}};
  const std::string text = render_config(values);
  const Settings settings =
      resolve({}, Environment::of({}), parse_document("c.yaml", text, Format::kYaml));
  for (const auto& [name, value] : values.settings) {
    EXPECT_EQ(settings.at(name).text, value);
    EXPECT_THAT(settings.at(name).origin, HasSubstr("c.yaml:")) << name;
  }
  for (const auto& [name, value] : values.variables) {
    EXPECT_EQ(settings.variables().at(name).text, value);
  }
  EXPECT_EQ(settings.variables().size(), 3U);
}

TEST(RenderConfig, SaysEverySettingInAComment) {
  const std::string text = render_config({});
  EXPECT_EQ(parse_document("c.yaml", text, Format::kYaml).root.kind, Node::Kind::kNull);
  for (const SettingSpec& spec : all_settings()) {
    EXPECT_THAT(text, HasSubstr("\n# " + spec.name + ": "));
    EXPECT_THAT(text, HasSubstr("# " + spec.description));
  }
}

TEST(WriteConfig, IsForThisUserAloneAndMakesItsFolders) {
  const TestFolder folder;
  const fs::path path = folder / "a" / "b" / "config.yaml";
  EXPECT_TRUE(write_config(path, "debug: true\n", false));
  EXPECT_EQ(contents(path), "debug: true\n");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  ASSERT_EQ(::stat(path.parent_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  EXPECT_EQ(files_in(path.parent_path()), 1U);
}

TEST(WriteConfig, ReplacesOnlyIfAsked) {
  const TestFolder folder;
  const fs::path path = folder / "config.yaml";
  EXPECT_TRUE(write_config(path, "one\n", true));
  EXPECT_FALSE(write_config(path, "two\n", false));
  EXPECT_EQ(contents(path), "one\n");
  EXPECT_TRUE(write_config(path, "three\n", true));
  EXPECT_EQ(contents(path), "three\n");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(WriteConfig, FollowsALinkAndRefusesAFolder) {
  const TestFolder folder;
  fs::create_directory(folder / "dotfiles");
  std::ofstream(folder / "dotfiles" / "real.yaml") << "old\n";
  fs::create_symlink("dotfiles/real.yaml", folder / "config.yaml");
  EXPECT_TRUE(write_config(folder / "config.yaml", "new\n", true));
  EXPECT_TRUE(fs::is_symlink(folder / "config.yaml"));
  EXPECT_EQ(contents(folder / "dotfiles" / "real.yaml"), "new\n");
  EXPECT_THROW(write_config(folder / "dotfiles", "x\n", true), ConfigError);
}

TEST(WriteConfig, AFullOrForbiddenDiskIsAnError) {
  EXPECT_THROW(write_config("/proc/lockstep/config.yaml", "x\n", true), Error);
  EXPECT_THROW(write_config("/dev/null/config.yaml", "x\n", true), Error);
}

TEST(WriteBasicConfig, WritesOnceAndKeepsAnExistingFile) {
  const TestFolder folder;
  const fs::path path = folder / "config.yaml";
  EXPECT_TRUE(write_basic_config("bf16", path));
  EXPECT_FALSE(write_basic_config("fp16", path));
  const Settings settings =
      resolve({}, Environment::of({}), read_config(path.native(), Environment::of({})));
  EXPECT_EQ(settings.text("mixed_precision"), "bf16");
  EXPECT_EQ(settings.text("num_processes"), "auto");
  EXPECT_THAT(
      [&] { write_basic_config("fp8", folder / "other.yaml"); },
      ThrowsMessage<ConfigError>(
          HasSubstr("invalid value 'fp8' for mixed_precision; expected one of no, fp16, bf16")));
  EXPECT_FALSE(fs::exists(folder / "other.yaml"));
}

TEST(WriteBasicConfig, KnowsItsPlace) {
  const TestFolder folder;
  ASSERT_EQ(::setenv("XDG_CONFIG_HOME", folder.path().c_str(), 1), 0);
  EXPECT_TRUE(write_basic_config());
  ASSERT_EQ(::unsetenv("XDG_CONFIG_HOME"), 0);
  EXPECT_THAT(
      contents(folder / "lockstep" / "config.yaml"), HasSubstr("\nmixed_precision: \"no\"\n"));
}

}  // namespace
}  // namespace lockstep::config
