// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/env_file.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> lines_of(const std::vector<config::EnvVariable>& variables) {
  std::vector<std::string> lines;
  for (const config::EnvVariable& variable : variables) {
    lines.push_back(variable.name + "=" + variable.value);
  }
  return lines;
}

TEST(ParseEnvFile, ReadsNamesAndValues) {
  EXPECT_THAT(
      lines_of(parse_env_file(
          "# for NCCL\nNCCL_DEBUG=INFO\r\n\nexport A=b c \nURL=http://x/?y=1#z\n"
          "Q=\"two  words \" \nS='$HOME'\nEMPTY=\nNCCL_DEBUG=WARN\n",
          "file")),
      ElementsAre(
          "NCCL_DEBUG=WARN", "A=b c", "URL=http://x/?y=1#z", "Q=two  words ", "S=$HOME", "EMPTY="));
}

TEST(ParseEnvFile, NamesTheFaultAndItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"A=1\n  NCCL_DEBUG\n", "file:2:3: has no '='"},
      {"=1\n", "file:1:1: the name '' is empty"},
      {"A B=1\n", "file:1:1: the name 'A B' is invalid"},
      {"1A=1\n", "file:1:1: the name '1A' is invalid"},
      {"A =1\n", "file:1:1: the name 'A ' is invalid"},
      {"A=\"open\n", "file:1:3: the quote \" is not closed"},
      {"A='x'y\n", "file:1:6: text after the closing quote"},
      {"A=1\nRANK=3\n", "file:2:1: the name 'RANK' is set by the launcher itself"},
      {"export\n", "file:1:1: has no '='"},
      {"A=\x1b[2J\n", "file:1:3: holds a control character (byte 27)"}};
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(
        ([&, &text = text] { parse_env_file(text, "file"); }),
        ThrowsMessage<ConfigError>(HasSubstr(message)))
        << text;
  }
}

TEST(ReadEnvFiles, LaterFoldersWinAndMissingFilesAreNoFault) {
  const TestFolder home;
  const TestFolder here;
  const TestFolder nothing;
  std::ofstream(home / kEnvFile) << "A=home\nB=home\n";
  std::ofstream(here / kEnvFile) << "B=here\n";
  EXPECT_THAT(
      lines_of(read_env_files({home.path(), nothing.path(), here.path()})),
      ElementsAre("A=home", "B=here"));
}

TEST(ParseEnvFlag, SetsOrPassesOn) {
  const std::vector<std::string> inherited = {"A=1=2", "AB=3"};
  EXPECT_THAT(lines_of({parse_env_flag("X=y z", inherited)}), ElementsAre("X=y z"));
  EXPECT_THAT(lines_of({parse_env_flag("X=", inherited)}), ElementsAre("X="));
  EXPECT_THAT(lines_of({parse_env_flag("A", inherited)}), ElementsAre("A=1=2"));
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"B", "no such variable"},
           {"=1", "the name is empty"},
           {"WORLD_SIZE=9", "is set by the launcher itself"},
           {"a-b=1", "is invalid"}}) {
    EXPECT_THAT(
        ([&, &text = text] { parse_env_flag(text, inherited); }),
        ThrowsMessage<ConfigError>(HasSubstr(message)))
        << text;
  }
}

TEST(ForwardedVariables, AreThoseOfPythonAndTheNetworks) {
  std::vector<std::string> names;
  for (const config::EnvVariable& variable : forwarded_variables(
           {"NCCL_DEBUG=INFO",
            "PYTHONPATH=/a:/b=c",
            "PATH=/bin",
            "MY_NCCL=1",
            "UCX_TLS=",
            "PYTHON"})) {
    names.push_back(variable.name + "=" + variable.value);
  }
  EXPECT_THAT(names, testing::ElementsAre("NCCL_DEBUG=INFO", "PYTHONPATH=/a:/b=c", "UCX_TLS="));
}

}  // namespace
}  // namespace lockstep::launcher
