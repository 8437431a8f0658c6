// SPDX-License-Identifier: Apache-2.0
#include "cli/config/menu.h"

#include <csignal>
#include <map>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/config/questionnaire.h"
#include "lockstep/base/error.h"
#include "lockstep/base/program/test_pty.h"

namespace lockstep::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::ThrowsMessage;

const std::vector<Choice> kColours = {{"red", "warm"}, {"green", ""}, {"blue", "cold"}};
const std::string kUp = "\x1b[A";
const std::string kDown = "\x1b[B";
const std::string kEnd = "\x1bOF";

/// Runs in the child: 40 + the choice, or 128 + SIGINT for Ctrl-C, or 2 for a ConfigError.
int choose_colour(const std::map<std::string, std::string>& variables) {
  Menu menu(STDIN_FILENO, STDOUT_FILENO, Environment::of(variables));
  try {
    return 40 + static_cast<int>(menu.choose("Which colour?", kColours, 1));
  } catch (const Interrupted&) {
    return 128 + SIGINT;
  } catch (const ConfigError&) {
    return 2;
  }
}

TestPty colours(
    std::map<std::string, std::string> variables = {{"TERM", "xterm"}}, int columns = 80) {
  return TestPty([=] { return choose_colour(variables); }, columns);
}

TEST(MenuOnATerminal, ArrowsMoveAndEnterTakes) {
  TestPty pty = colours();
  pty.await("  blue: cold");
  pty.type(kDown + "\r");
  EXPECT_EQ(pty.wait(), 42);
  EXPECT_THAT(pty.shown(), HasSubstr("\x1b[1m> green\x1b[0m"));
  EXPECT_THAT(pty.shown(), testing::EndsWith("Which colour? blue\r\n"));
}

TEST(MenuOnATerminal, WrapsAroundAndAcceptsOtherKeys) {
  const std::vector<std::pair<std::string, int>> cases = {
      {"\r", 41},
      {kUp + kUp + "\r", 42},
      {kDown + kDown + "\n", 40},
      {kEnd + "\r", 42},
      {"k\r", 40},
      {"j\r", 42},
      {"3\r", 42},
      {"9\r", 41},
      {"x\t \x1b[5~\r", 41}};
  for (const auto& [keys, code] : cases) {
    TestPty pty = colours();
    pty.await("  blue: cold");
    pty.type(keys);
    EXPECT_EQ(pty.wait(), code) << keys;
  }
}

TEST(MenuOnATerminal, CtrlCRestoresTheTerminal) {
  TestPty pty = colours();
  pty.await("  blue: cold");
  EXPECT_FALSE(pty.is_restored());
  pty.type("\x03");
  EXPECT_EQ(pty.wait(), 130);
}

TEST(MenuOnATerminal, TheTerminalIsRestoredAfterEachQuestion) {
  TestPty pty([] {
    const int code = choose_colour({{"TERM", "xterm"}});
    std::string text = "asked\n";
    if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) {
      return 1;
    }
    ::pause();
    return code;
  });
  pty.await("  blue: cold");
  pty.type("\x03");
  pty.await("asked");
  EXPECT_TRUE(pty.is_restored());
}

TEST(MenuOnATerminal, ASignalThatEndsItRestoresTheTerminal) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    // The shell that started it, which outlives it and so keeps the terminal.
    TestPty pty([signal] {
      ::signal(signal, SIG_IGN);
      const pid_t asking = ::fork();
      if (asking == 0) {
        ::signal(signal, SIG_DFL);
        ::_exit(choose_colour({{"TERM", "xterm"}}));
      }
      int status = 0;
      ::waitpid(asking, &status, 0);
      const std::string text =
          WIFSIGNALED(status) && WTERMSIG(status) == signal ? "ended\n" : "not ended\n";
      const bool written = ::write(STDOUT_FILENO, text.data(), text.size()) > 0;
      ::pause();
      return written ? 0 : 1;
    });
    pty.await("  blue: cold");
    ASSERT_FALSE(pty.is_restored());
    ASSERT_EQ(::kill(-pty.pid(), signal), 0);
    pty.await("ended");
    EXPECT_THAT(pty.shown(), Not(HasSubstr("not ended"))) << signal;
    EXPECT_TRUE(pty.is_restored()) << signal;
  }
}

TEST(MenuOnATerminal, CtrlZStopsItAndItContinues) {
  TestPty pty = colours();
  pty.await("  blue: cold");
  // A process group without a shell cannot be stopped by SIGTSTP; what counts is that it goes on.
  pty.type("\x1a");
  pty.await("  blue: cold");
  pty.type(kDown + "\r");
  EXPECT_EQ(pty.wait(), 42);
}

TEST(MenuOnATerminal, TheEndOfInputIsAnError) {
  TestPty pty = colours();
  pty.await("  blue: cold");
  pty.type("\x04");
  EXPECT_EQ(pty.wait(), 2);
}

TEST(MenuOnATerminal, NoColorIsObeyed) {
  TestPty pty = colours({{"TERM", "xterm"}, {"NO_COLOR", "1"}});
  pty.await("  blue: cold");
  pty.type("\r");
  EXPECT_EQ(pty.wait(), 41);
  EXPECT_THAT(pty.shown(), AllOf(HasSubstr("> green"), Not(HasSubstr("\x1b[1m"))));
}

TEST(MenuOnATerminal, NumberedLinesWhereKeysCannotWork) {
  const std::map<std::string, std::string> dumb = {{"TERM", "dumb"}};
  for (TestPty* pty :
       {new TestPty([=] { return choose_colour(dumb); }),
        new TestPty([] { return choose_colour({}); }),
        new TestPty(
            [] {
              return choose_colour({{"TERM", "xterm"}});
            },
            20),
        new TestPty(
            [] {
              return choose_colour({{"TERM", "xterm"}});
            },
            80,
            4)}) {
    const std::unique_ptr<TestPty> owner(pty);
    pty->await("  3) blue: cold\r\n[2]: ");
    pty->type("3\n");
    EXPECT_EQ(pty->wait(), 42);
    EXPECT_THAT(pty->shown(), Not(HasSubstr("\x1b")));
  }
}

TEST(MenuOnATerminal, CtrlCAtALineRestoresTheTerminal) {
  TestPty pty = colours({{"TERM", "dumb"}});
  pty.await("[2]: ");
  EXPECT_FALSE(pty.is_restored());
  pty.type("1\x03");
  EXPECT_EQ(pty.wait(), 130);
}

TEST(MenuOnATerminal, LongLinesAreCutToTheWindow) {
  TestPty pty(
      [] {
        Menu menu(STDIN_FILENO, STDOUT_FILENO, Environment::of({{"TERM", "xterm"}}));
        menu.choose(std::string(200, 'q'), {{std::string(100, 'a'), ""}, {"b", ""}}, 0);
        return 0;
      },
      30);
  pty.await("  b");
  pty.type("\r");
  EXPECT_EQ(pty.wait(), 0);
  EXPECT_THAT(pty.shown(), HasSubstr("> aaaaaaaaaaaaa…aaaaaaaaaaaaa\x1b"));
}

/// Checks answers and output for input that is not a terminal.
class MenuOnAPipe : public testing::Test {
 protected:
  Menu menu(const std::string& input) {
    in_ = ::memfd_create("in", MFD_CLOEXEC);
    out_ = ::memfd_create("out", MFD_CLOEXEC);
    EXPECT_EQ(::write(in_, input.data(), input.size()), static_cast<ssize_t>(input.size()));
    ::lseek(in_, 0, SEEK_SET);
    return {in_, out_, Environment::of({{"TERM", "xterm"}})};
  }
  ~MenuOnAPipe() override {
    ::close(in_);
    ::close(out_);
  }
  std::string printed() const {
    std::string text(65536, '\0');
    const ssize_t size = ::pread(out_, text.data(), text.size(), 0);
    text.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return text;
  }

 private:
  int in_ = -1;
  int out_ = -1;
};

TEST_F(MenuOnAPipe, TakesNumbersAndNamesAndAsksAgain) {
  Menu menu = this->menu("7\nblue\n1\n\n\r\n");
  EXPECT_EQ(menu.choose("Which?", kColours, 1), 2U);
  EXPECT_EQ(menu.choose("Which?", kColours, 1), 0U);
  EXPECT_EQ(menu.choose("Which?", kColours, 1), 1U);
  EXPECT_EQ(menu.choose("Which?", kColours, 2), 2U);
  EXPECT_THAT(
      printed(),
      AllOf(
          HasSubstr("Which?\n  1) red: warm\n  2) green\n  3) blue: cold\n[2]: 7\n"),
          HasSubstr("  invalid answer '7'; expected a number from 1 to 3\n[2]: blue\n"),
          Not(HasSubstr("\x1b"))));
}

TEST_F(MenuOnAPipe, AsksForTextUntilItIsRight) {
  Menu menu = this->menu("x\n5\n\nlast");
  const auto check = [](const std::string& text) {
    return parse_integer(text) ? std::string() : "got '" + text + "', expected a number";
  };
  const auto any = [](const std::string& /*text*/) { return std::string(); };
  EXPECT_EQ(menu.ask("How many?", "1", check), "5");
  EXPECT_EQ(menu.ask("How many?", "1", check), "1");
  EXPECT_EQ(menu.ask("What?", "", any), "last");
  EXPECT_THAT(
      printed(), HasSubstr("How many? [1]: x\n  got 'x', expected a number\nHow many? [1]"));
}

TEST_F(MenuOnAPipe, TheEndOfInputNamesTheQuestion) {
  Menu menu = this->menu("");
  EXPECT_THAT(
      [&] { menu.choose("Which?", kColours, 1); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("ended at the question 'Which?'"), HasSubstr("nothing was written"))));
}

TEST_F(MenuOnAPipe, AQuestionnaireOfEmptyLinesSaysAlmostNothing) {
  Menu menu = this->menu("\n\n\n\n\n\n\n\n");
  const config::ConfigValues values = ask_settings(menu, {});
  EXPECT_THAT(values.settings, ElementsAre(Pair("num_processes", "auto")));
  EXPECT_THAT(values.variables, IsEmpty());
}

TEST_F(MenuOnAPipe, AQuestionnaireAsksForDependentSettings) {
  Menu menu = this->menu(
      "2\n"      // machines
      "local\n"  // launcher
      "2\n1\n"   // machine rank, after one that has no place
      "-x\n10.0.0.1\n"
      "\n"  // port
      "a number\n16\n"
      "bf16\n"
      "stage 2\n"
      "1e3\n3\n"  // restarts
      "/logs\n"
      "yes\n"
      "none\n");
  EXPECT_THAT(
      ask_settings(menu, {}).settings,
      ElementsAre(
          Pair("debug", "true"),
          Pair("launcher", "local"),
          Pair("log_dir", "/logs"),
          Pair("machine_rank", "1"),
          Pair("main_process_ip", "10.0.0.1"),
          Pair("main_process_port", "29500"),
          Pair("max_restarts", "3"),
          Pair("mixed_precision", "bf16"),
          Pair("num_machines", "2"),
          Pair("num_processes", "16"),
          Pair("zero_stage", "2")));
  EXPECT_THAT(
      printed(),
      HasSubstr(
          "invalid value '1e3' for max_restarts; expected a whole number from 0 to 1000; write "
          "1000"));
}

TEST_F(MenuOnAPipe, AQuestionnaireKeepsOtherSettings) {
  const config::ConfigValues present = {
      .settings =
          {{"grace_seconds", "5"},
           {"num_processes", "8"},
           {"num_machines", "2"},
           {"launcher", "ssh"},
           {"hostfile", "/hosts"},
           {"log_dir", "/logs"},
           {"debug", "true"}},
      .variables = {{"A", "b"}}};
  Menu same = menu("\n\n\n\n\n\n\n\n\n\n\n");
  EXPECT_EQ(ask_settings(same, present).settings, present.settings);
  Menu changed = menu("1\n\n\n\n\n\nnone\nno\n\n");
  const config::ConfigValues values = ask_settings(changed, present);
  EXPECT_EQ(values.variables, present.variables);
  EXPECT_EQ(values.settings.at("grace_seconds"), "5");
  EXPECT_EQ(values.settings.count("launcher"), 0U);
  EXPECT_EQ(values.settings.at("num_machines"), "1");
  EXPECT_EQ(values.settings.at("log_dir"), "");
  EXPECT_EQ(values.settings.at("debug"), "false");
}

}  // namespace
}  // namespace lockstep::cli
