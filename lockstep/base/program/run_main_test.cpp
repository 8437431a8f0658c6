// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/program/run_main.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RunMain : public testing::Test {
 protected:
  RunMain() {
    set_log_options({});
    set_log_sink([this](const std::string& line) { lines_.push_back(line); });
  }
  ~RunMain() override { set_log_sink({}); }
  std::vector<std::string> lines_;
};

TEST_F(RunMain, PassesTheExitCodeOn) {
  EXPECT_EQ(run_main([] { return 0; }), 0);
  EXPECT_EQ(run_main([] { return 75; }), 75);
  EXPECT_TRUE(lines_.empty());
}

TEST_F(RunMain, AConfigErrorEndsWithTwo) {
  EXPECT_EQ(run_main([]() -> int { throw ConfigError("world", "bad value"); }), kExitUsage);
  EXPECT_THAT(lines_, ElementsAre("error: [world] bad value\n"));
}

TEST_F(RunMain, EverythingElseEndsWithOne) {
  EXPECT_EQ(run_main([]() -> int { throw CommError("barrier", "lost"); }), kExitFailure);
  EXPECT_EQ(run_main([]() -> int { throw std::logic_error("odd"); }), kExitFailure);
  EXPECT_EQ(run_main([]() -> int { throw 42; }), kExitFailure);
  EXPECT_THAT(
      lines_,
      ElementsAre("error: [barrier] lost\n", "error: odd\n", HasSubstr("not a std::exception")));
}

TEST_F(RunMain, TorchsFramesAreOmitted) {
  run_main([]() -> int {
    throw std::runtime_error("no memory\nframe #0: c10::alloc_cpu\nframe #1: main");
  });
  run_main([]() -> int {
    throw std::runtime_error("bad shape\nException raised from f at g.cpp:1\nframe #0: f");
  });
  EXPECT_THAT(
      lines_,
      ElementsAre(
          "error: no memory (TORCH_SHOW_CPP_STACKTRACES=1 shows the stack)\n",
          "error: bad shape (TORCH_SHOW_CPP_STACKTRACES=1 shows the stack)\n"));
}

// Options are read once in each process, so this test needs another process.
TEST(RunMainDeathTest, ReportsEvenIfTheLogVariablesAreWrong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("LOCKSTEP_LOG_LEVEL", "loud", 1);
        std::exit(run_main([]() -> int { throw Error("train", "broke"); }));
      },
      testing::ExitedWithCode(kExitFailure),
      testing::AllOf(HasSubstr("error: [train] broke\n"), HasSubstr("LOCKSTEP_LOG_LEVEL")));
}

TEST(RunMainDeathTest, TheErrorIsOneLineOnStderr) {
  EXPECT_EXIT(
      std::exit(run_main([]() -> int { throw ConfigError("world", "bad"); })),
      testing::ExitedWithCode(kExitUsage),
      testing::HasSubstr("error: [world] bad\n"));
}

}  // namespace
}  // namespace lockstep
