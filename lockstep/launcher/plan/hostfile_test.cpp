// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/hostfile.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::launcher {

bool operator==(const Host& a, const Host& b) {
  return a.name == b.name && a.slots == b.slots;
}

void PrintTo(const Host& host, std::ostream* out) {
  *out << host.name << ":" << host.slots;
}

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ParseHostfile, ReadsDeepSpeedsLines) {
  EXPECT_THAT(
      parse_hostfile("worker-1 slots=4\nworker-2\tslots=2\n", "hosts"),
      ElementsAre(Host{"worker-1", 4}, Host{"worker-2", 2}));
}

TEST(ParseHostfile, ReadsOpenMpisLines) {
  EXPECT_THAT(
      parse_hostfile("a\nb slots=2 max_slots=8\nc:3\nd max-slots=1\nme@e:2\n", "hosts"),
      ElementsAre(Host{"a", 1}, Host{"b", 2}, Host{"c", 3}, Host{"d", 1}, Host{"me@e", 2}));
}

TEST(ParseHostfile, ReadsAddresses) {
  EXPECT_THAT(
      parse_hostfile("10.0.0.1:2\n[fe80::1%eth0]:4\n::1 slots=2\n[fe80::2] slots=3\n", "hosts"),
      ElementsAre(
          Host{"10.0.0.1", 2}, Host{"fe80::1%eth0", 4}, Host{"::1", 2}, Host{"fe80::2", 3}));
}

TEST(ParseHostfile, CommentsEmptyLinesAndWindowsEndsDoNoHarm) {
  EXPECT_THAT(
      parse_hostfile("# all\r\n\r\n  a slots=2  # the first\r\n\t\r\nb slots=1", "hosts"),
      ElementsAre(Host{"a", 2}, Host{"b", 1}));
}

TEST(ParseHostfile, NamesTheFaultAndItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a slots=two\n", "hosts:1:9: invalid value 'two' for slots"},
      {"a slots=0\n", "hosts:1:9: invalid value '0' for slots"},
      {"a slots=-1\n", "hosts:1:9: invalid value '-1' for slots"},
      {"a slots=\n", "hosts:1:9: invalid value '' for slots"},
      {"a slots=99999999999999999999\n", "hosts:1:9:"},
      {"a slots=65537\n", "hosts:1:9:"},
      {"a slots=4 gpus=2\n", "hosts:1:11: unknown field 'gpus=2'"},
      {"a slot=4\n", "did you mean 'slots'?"},
      {"a slots 4\n", "hosts:1:3: unknown field 'slots'"},
      {"a:x\n", "hosts:1:3: invalid value 'x' for the number"},
      {"a:2 slots=2\n", "hosts:1:5: the slots of a are given twice"},
      {"a slots=2 slots=2\n", "hosts:1:11: the slots of a are given twice"},
      {"a slots=4 max_slots=2\n", "hosts:1:1: a has 4 slots, but max_slots=2"},
      {"a slots=1\n\nb\n  a slots=2\n", "hosts:4:3: host a is listed twice, first in line 1"},
      {"", "hosts:1:1: names no host"},
      {"# nobody\n", "hosts:1:1: names no host"},
      {std::string("a\0b\n", 4), "hosts:1:2: holds a control character (byte 0)"}};
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(
        ([&, &text = text] { parse_hostfile(text, "hosts"); }),
        ThrowsMessage<ConfigError>(HasSubstr(message)))
        << text;
  }
}

TEST(ParseHostfile, RefusesNamesThatWouldBeMoreThanNamesToSshOrAShell) {
  for (const char* name :
       {"-oProxyCommand=touch${IFS}pwned",
        "-l",
        ";rm",
        "a;rm",
        "$(id)",
        "a`id`",
        "a|b",
        "a&b",
        "a/b",
        "../a",
        "a\\b",
        "'a'",
        "a*",
        "a=b",
        "h\xc3\xa9",
        "[a",
        "[]"}) {
    EXPECT_THAT(
        [&] { parse_hostfile("ok slots=1\n" + std::string(name) + " slots=1\n", "hosts"); },
        ThrowsMessage<ConfigError>(
            AllOf(HasSubstr("hosts:2:1:"), HasSubstr("invalid host name '"))))
        << name;
  }
  EXPECT_THAT(
      [] { parse_hostfile(std::string(256, 'a'), "hosts"); },
      ThrowsMessage<ConfigError>(HasSubstr("longer than 255")));
}

TEST(ReadHostfile, NamesAFileThatCannotBeRead) {
  const TestFolder folder;
  const std::string file = folder / "hosts";
  EXPECT_THAT(
      [&] { read_hostfile(file); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr(file), HasSubstr("No such file"))));
  EXPECT_THAT(
      [&] { read_hostfile(folder.path()); },
      ThrowsMessage<ConfigError>(HasSubstr("Is a directory")));
  std::ofstream(file) << std::string(size_t{2} << 20, '#');
  EXPECT_THAT([&] { read_hostfile(file); }, ThrowsMessage<ConfigError>(HasSubstr("too large")));
  std::ofstream(file) << "localhost slots=2\n";
  EXPECT_THAT(read_hostfile(file), ElementsAre(Host{"localhost", 2}));
}

}  // namespace
}  // namespace lockstep::launcher
