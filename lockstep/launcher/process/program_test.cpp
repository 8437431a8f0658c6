// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/program.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class FindProgram : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/lockstep-program-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name, mode_t mode) const {
    std::string path = folder_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n";
    ::chmod(path.c_str(), mode);
    return path;
  }
  std::string folder_;
};

TEST_F(FindProgram, SearchesPathInOrderAndSkipsFilesThatAreNotExecutable) {
  std::filesystem::create_directories(folder_ + "/a/train");
  file("train", 0755);
  const auto environment = Environment::of({{"PATH", "/nowhere:" + folder_ + "/a:" + folder_}});
  const Program program = find_program({"train", "--lr", "0.1"}, environment);
  EXPECT_EQ(program.path, folder_ + "/train");
  EXPECT_THAT(program.argv, ElementsAre("train", "--lr", "0.1"));
  EXPECT_FALSE(program.is_python);
}

TEST_F(FindProgram, AFileIsTakenAsItIs) {
  const std::string path = file("train", 0755);
  EXPECT_EQ(find_program({path}, Environment::of({})).path, path);
}

TEST_F(FindProgram, AMissingProgramIsNamed) {
  EXPECT_THAT(
      [] {
        find_program({"no-such-program"}, Environment::of({{"PATH", "/bin"}}));
      },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("no-such-program"), HasSubstr("No such file"))));
  EXPECT_THAT(
      [] { find_program({"./no/such"}, Environment::of({})); },
      ThrowsMessage<ConfigError>(HasSubstr("./no/such")));
  EXPECT_THAT(
      [] { find_program({""}, Environment::of({})); },
      ThrowsMessage<ConfigError>(HasSubstr("empty")));
}

TEST_F(FindProgram, AFileWithoutExecutePermissionIsNamedWithTheRemedy) {
  const std::string path = file("data", 0644);
  EXPECT_THAT(
      [&] { find_program({path}, Environment::of({})); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("Permission denied"), HasSubstr("chmod +x " + path))));
  EXPECT_THAT(
      [&] { find_program({folder_}, Environment::of({})); },
      ThrowsMessage<ConfigError>(HasSubstr("Is a directory")));
}

TEST_F(FindProgram, APythonScriptIsRunByPythonWithoutBeingExecutable) {
  const std::string script = file("train.py", 0644);
  const std::string python = file("python3", 0755);
  const Program program = find_program({script, "-n"}, Environment::of({{"PATH", folder_}}));
  EXPECT_EQ(program.path, python);
  EXPECT_THAT(program.argv, ElementsAre("python3", script, "-n"));
  EXPECT_TRUE(program.is_python);
  const std::string other = file("pypy", 0755);
  EXPECT_EQ(find_program({script}, Environment::of({{"LOCKSTEP_PYTHON", other}})).path, other);
  EXPECT_THAT(
      [&] {
        find_program({folder_ + "/none.py"}, Environment::of({{"PATH", folder_}}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("none.py")));
}

TEST_F(FindProgram, RunsAModuleOrABinaryOnRequest) {
  const auto environment = Environment::of({{"LOCKSTEP_PYTHON", "/bin/sh"}});
  const Program module = find_program({"a.b", "-x"}, environment, ProgramKind::kModule);
  EXPECT_EQ(module.path, "/bin/sh");
  EXPECT_THAT(module.argv, testing::ElementsAre("/bin/sh", "-m", "a.b", "-x"));
  EXPECT_TRUE(module.is_python);
  EXPECT_THROW(find_program({"-c"}, environment, ProgramKind::kModule), ConfigError);
}

TEST_F(FindProgram, TakesThePythonBesideALauncherInAPythonEnvironment) {
  const auto found = [this](const std::map<std::string, std::string>& variables) {
    auto environment = variables;
    environment.insert({"PATH", folder_});
    return find_program(
        {"train"},
        Environment::of(environment),
        ProgramKind::kModule,
        folder_ + "/env/bin/lockstep");
  };
  const std::string in_path = file("python3", 0755);
  std::filesystem::create_directories(folder_ + "/env/bin");
  const std::string beside = file("env/bin/python", 0755);
  EXPECT_EQ(found({}).path, in_path) << "no Python environment: /usr/bin of a Debian package";

  file("env/pyvenv.cfg", 0644);
  EXPECT_EQ(found({}).path, beside);
  // Python finds its environment by this word, so a name without a path would select another one.
  EXPECT_EQ(found({}).argv.front(), beside);
  const std::string preferred = file("env/bin/python3", 0755);
  EXPECT_EQ(found({}).path, preferred);
  EXPECT_EQ(found({{"LOCKSTEP_PYTHON", in_path}}).path, in_path);
  EXPECT_EQ(found({{"VIRTUAL_ENV", folder_ + "/other"}}).path, preferred);

  std::filesystem::remove(folder_ + "/env/pyvenv.cfg");
  EXPECT_EQ(found({}).path, in_path);
  std::filesystem::create_directories(folder_ + "/env/lib/python3.12/site-packages/lockstep");
  file("env/lib/python3.12/site-packages/lockstep/__init__.py", 0644);
  EXPECT_EQ(found({}).path, preferred) << "an installation in a prefix without pyvenv.cfg: conda";
  std::filesystem::remove(folder_ + "/env/bin/python3");
  std::filesystem::remove(folder_ + "/env/bin/python");
  EXPECT_EQ(found({}).path, in_path) << "pip install --user has no Python beside the launcher";
}

TEST(OwnExecutable, HasNoLinksInItsPath) {
  EXPECT_EQ(own_executable(), std::filesystem::canonical("/proc/self/exe"));
}

}  // namespace
}  // namespace lockstep::launcher
