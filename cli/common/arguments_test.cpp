// SPDX-License-Identifier: Apache-2.0
#include "cli/common/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

class SplitArguments : public testing::Test {
 protected:
  SplitArguments() : app_("", "tool") {
    CLI::App* launch = app_.add_subcommand("launch");
    launch->prefix_command();
    launch->add_option("-n,--num-ranks", number_);
    launch->add_flag("-q,--quiet", quiet_);
    app_.add_subcommand("env");
    app_.add_subcommand("show")->add_flag("-q,--quiet", quiet_);
  }
  Arguments split(const std::vector<std::string>& words) const {
    return split_arguments(app_, words);
  }
  CLI::App app_;
  std::string number_;
  bool quiet_ = false;
};

TEST_F(SplitArguments, NamesTheOptionForOneOfOtherLaunchers) {
  const auto refused = [](const std::string& text) {
    return ThrowsMessage<ConfigError>(HasSubstr(text));
  };
  EXPECT_THAT(
      [&] {
        split({"launch", "-np", "2", "train"});
      },
      refused("unknown option -np; tool launch --help lists the options; did you mean '-n'?"));
  EXPECT_THAT([&] { split({"launch", "-np2", "train"}); }, refused("did you mean '-n'?"));
  EXPECT_THAT([&] { split({"launch", "--np", "2"}); }, refused("did you mean '-n'?"));
  EXPECT_THAT(
      [&] {
        split({"launch", "-num-ranks", "2"});
      },
      refused("unknown option -num-ranks; did you mean '--num-ranks'?"));
  EXPECT_THAT([&] { split({"launch", "-quiet"}); }, refused("did you mean '--quiet'?"));
  // A command without -n gets no hint.
  EXPECT_THAT([&] { split({"env", "--np"}); }, refused("unknown option --np; tool env --help"));
}

TEST_F(SplitArguments, NothingAfterTheProgramIsRead) {
  const Arguments arguments =
      split({"launch", "-n", "2", "train", "-n", "5", "--help", "--", "-q", "--nonsense"});
  EXPECT_THAT(arguments.own, ElementsAre("launch", "--num-ranks=2"));
  EXPECT_THAT(
      arguments.program, ElementsAre("train", "-n", "5", "--help", "--", "-q", "--nonsense"));
}

TEST_F(SplitArguments, TwoDashesBeginTheProgramOfAnyName) {
  EXPECT_THAT(split({"launch", "-q", "--", "-n", "3"}).program, ElementsAre("-n", "3"));
  EXPECT_THAT(split({"launch", "-n2", "--"}).program, IsEmpty());
}

TEST_F(SplitArguments, ACommandWithoutAProgramGetsAllArguments) {
  const Arguments arguments = split({"show", "a", "-q", "launch", "--", "-b", "--"});
  EXPECT_THAT(arguments.own, ElementsAre("show", "-q"));
  EXPECT_THAT(arguments.words, ElementsAre("a", "launch", "-b", "--"));
  EXPECT_THAT(arguments.program, IsEmpty());
}

TEST_F(SplitArguments, EveryWayToWriteAnOptionIsTheSame) {
  const std::vector<std::vector<std::string>> ways = {
      {"launch", "-n", "2", "train"},
      {"launch", "-n2", "train"},
      {"launch", "-n=2", "train"},
      {"launch", "--num-ranks", "2", "train"},
      {"launch", "--num-ranks=2", "train"},
      {"launch", "--num_ranks", "2", "train"},
      {"launch", "--num_ranks=2", "train"}};
  for (const auto& words : ways) {
    const Arguments arguments = split(words);
    EXPECT_THAT(arguments.own, ElementsAre("launch", "--num-ranks=2"));
    EXPECT_THAT(arguments.program, ElementsAre("train"));
  }
  EXPECT_THAT(split({"launch", "-qn", "-1"}).own, ElementsAre("launch", "-q", "--num-ranks=-1"));
}

TEST_F(SplitArguments, AnUnknownOptionIsRefusedWithTheLikeliestOne) {
  EXPECT_THAT(
      [&] {
        split({"launch", "--num-rank", "2", "train"});
      },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("[tool launch]"), HasSubstr("did you mean '--num-ranks'?"))));
  EXPECT_THAT(
      [&] {
        split({"launch", "-x"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("unknown option -x")));
}

TEST_F(SplitArguments, AnUnknownCommandIsRefusedWithTheLikeliestOne) {
  EXPECT_THAT(
      [&] { split({"lanch"}); }, ThrowsMessage<ConfigError>(HasSubstr("did you mean 'launch'?")));
  EXPECT_THAT(
      [&] {
        split({"--", "x"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("unknown option --")));
}

TEST_F(SplitArguments, AMissingOrNeedlessValueIsRefused) {
  EXPECT_THAT(
      [&] {
        split({"launch", "-n"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("the value of -n is missing")));
  EXPECT_THAT(
      [&] {
        split({"launch", "--num-ranks=", "x"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("is empty; expected a value")));
  EXPECT_THAT(
      [&] {
        split({"launch", "--quiet=1"});
      },
      ThrowsMessage<ConfigError>(HasSubstr("takes no value")));
}

TEST(ExpectWords, NamesTheNeedlessOrMissingArgument) {
  const auto refused = [](const std::vector<std::string>& words, const std::string& text) {
    EXPECT_THAT(
        [&] { expect_words("tool show", words, 1, 2, "one or two files"); },
        ThrowsMessage<ConfigError>("[tool show] " + text));
  };
  expect_words("tool show", {"a"}, 1, 2, "one or two files");
  refused({}, "an argument is missing; expected one or two files; try tool show --help");
  refused(
      {"a", "b", "c\n"},
      "unexpected argument 'c\\x0a'; expected one or two files; try tool show --help");
  refused({"a", ""}, "an argument is empty; expected one or two files; try tool show --help");
}

}  // namespace
}  // namespace lockstep::cli
