// SPDX-License-Identifier: Apache-2.0
#include "cli/completion/completion.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/common/choices.h"
#include "cli/common/usage_formatter.h"
#include "cli/env/env_programs.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/base/text/shell.h"

namespace lockstep::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kCompletionTimeoutMs = 60000;

/// A command line with all that there is to complete, and with texts that trip shells up.
class Completion : public testing::Test {
 protected:
  Completion() : app_("It's `all` $of [it]: \"x\" \\ y.", "lockstep") {
    app_.set_help_flag("-h,--help", "Print this");
    CLI::App* launch = add("launch", "lockstep launch -n N [OPTIONS] [--] PROGRAM [ARGS...]");
    launch->prefix_command();
    launch->add_option("-n,--num-ranks", text_, "How [many]: it's `N`")->type_name("N|cpu|auto");
    launch->add_option("--hostfile", text_, "Hosts")->type_name("FILE");
    launch->add_flag("-q,--quiet", flag_, "Say \"nothing\" \\ $x");
    CLI::App* checkpoint = add("checkpoint", "lockstep checkpoint ls|prune");
    add("ls", "lockstep checkpoint ls FOLDER [--json]", checkpoint);
    add("prune", "lockstep checkpoint prune [FOLDER] --keep N", checkpoint)
        ->add_option("--keep", text_, "So many stay")
        ->type_name("N");
    add("env", "lockstep env [--json]")
        ->add_option("--format", text_, "Which")
        ->check(one_of({"text", "tidy", "json"}));
    write("bash", bash_completion(command_tree(app_)));
    write("zsh", zsh_completion(command_tree(app_)));
    write("fish", fish_completion(command_tree(app_)));
    std::ofstream(folder_ / "a file.txt") << "";
  }
  CLI::App* add(const std::string& name, const std::string& usage, CLI::App* parent = nullptr) {
    CLI::App* command =
        (parent == nullptr ? app_ : *parent).add_subcommand(name, "Do it's: " + name);
    set_help(*command, usage, "Examples:\n  .begins with a dot\n  'or' a quote\\n");
    return command;
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }

  /// Returns the completions of bash for the last of `words`.
  std::vector<std::string> bash(const std::vector<std::string>& words) const {
    const std::string script = "cd " + shell_quoted({folder_.path()}) +
                               "; source ./bash; COMP_WORDS=(lockstep " + shell_quoted(words) +
                               "); COMP_CWORD=" + std::to_string(words.size()) +
                               "; _lockstep; ((${#COMPREPLY[@]})) && printf '%s\\n' "
                               "\"${COMPREPLY[@]}\"; true";
    return lines_of({"bash", "--norc", "-c", script});
  }
  /// Returns the completions of fish after `line`, without descriptions.
  std::vector<std::string> fish(const std::string& line) const {
    const std::string script = "cd " + shell_quoted({folder_.path()}) +
                               "; source ./fish; complete -C " + shell_quoted({line});
    std::vector<std::string> lines = lines_of({"fish", "--no-config", "-c", script});
    for (std::string& entry : lines) {
      entry = entry.substr(0, entry.find('\t'));
    }
    return lines;
  }
  static std::vector<std::string> lines_of(const std::vector<std::string>& words) {
    const auto answer = ask_program(words, kCompletionTimeoutMs);
    EXPECT_TRUE(answer);
    EXPECT_EQ(answer->exit_code, 0) << answer->text;
    std::vector<std::string> lines;
    for (size_t begin = 0; begin < answer->text.size();) {
      const size_t end = std::min(answer->text.find('\n', begin), answer->text.size());
      lines.push_back(answer->text.substr(begin, end - begin));
      begin = end + 1;
    }
    return lines;
  }
  static bool has(const std::string& shell) {
    return !find_in_path(shell, Environment::process()).empty();
  }

  CLI::App app_;
  std::string text_;
  bool flag_ = false;
  TestFolder folder_;
};

TEST_F(Completion, BashOffersCommandsAndTheirOptions) {
  EXPECT_THAT(bash({""}), ElementsAre("launch", "checkpoint", "env"));
  EXPECT_THAT(bash({"che"}), ElementsAre("checkpoint"));
  EXPECT_THAT(bash({"checkpoint", ""}), ElementsAre("ls", "prune"));
  EXPECT_THAT(bash({"checkpoint", "prune", "--"}), ElementsAre("--help", "--keep"));
  EXPECT_THAT(bash({"launch", "--n"}), ElementsAre("--num-ranks"));
  EXPECT_THAT(bash({"env", ""}), IsEmpty());
}

TEST_F(Completion, BashCompletesValuesInEverySpelling) {
  EXPECT_THAT(bash({"launch", "-n", ""}), ElementsAre("cpu", "auto"));
  EXPECT_THAT(bash({"launch", "--num_ranks", "a"}), ElementsAre("auto"));
  EXPECT_THAT(bash({"env", "--format", "t"}), ElementsAre("text", "tidy"));
  EXPECT_THAT(bash({"env", "--format", "=", "j"}), ElementsAre("json"));
  EXPECT_THAT(bash({"env", "--format", "="}), ElementsAre("text", "tidy", "json"));
  EXPECT_THAT(bash({"env", "--format=j"}), ElementsAre("--format=json"));
  EXPECT_THAT(bash({"checkpoint", "prune", "x", "--keep", ""}), IsEmpty());
}

TEST_F(Completion, BashOffersFilesWhereFilesAreMeant) {
  EXPECT_THAT(bash({"launch", "--hostfile", "a"}), ElementsAre("a file.txt"));
  EXPECT_THAT(bash({"checkpoint", "ls", "a"}), ElementsAre("a file.txt"));
  EXPECT_THAT(bash({"checkpoint", "prune", "a"}), ElementsAre("a file.txt"));
}

TEST_F(Completion, BashLeavesAProgramsArgumentsToTheProgram) {
  EXPECT_THAT(bash({"launch", "-n", "2", "./train", "--num"}), IsEmpty());
  EXPECT_THAT(bash({"launch", "./train", "a"}), ElementsAre("a file.txt"));
  EXPECT_THAT(bash({"launch", "--", "-n", "a"}), ElementsAre("a file.txt"));
  EXPECT_THAT(bash({"launch", "-q", "true"}), testing::Contains("true"));
}

TEST_F(Completion, FishOffersTheSame) {
  if (!has("fish")) {
    GTEST_SKIP() << "fish is not installed";
  }
  EXPECT_THAT(fish("lockstep "), testing::UnorderedElementsAre("launch", "checkpoint", "env"));
  EXPECT_THAT(fish("lockstep checkpoint "), testing::UnorderedElementsAre("ls", "prune"));
  EXPECT_THAT(fish("lockstep launch --nu"), ElementsAre("--num-ranks"));
  EXPECT_THAT(fish("lockstep launch -n a"), ElementsAre("auto"));
  EXPECT_THAT(fish("lockstep env --format t"), testing::UnorderedElementsAre("text", "tidy"));
  EXPECT_THAT(fish("lockstep checkpoint prune x --k"), ElementsAre("--keep"));
  EXPECT_THAT(fish("lockstep launch ./train --nu"), IsEmpty());
  EXPECT_THAT(fish("lockstep checkpoint ls a"), ElementsAre("a file.txt"));
}

/// _arguments stands in for zsh's own and says what it is given.
TEST_F(Completion, ZshListsCommandsOptionsAndValues) {
  if (!has("zsh")) {
    GTEST_SKIP() << "zsh is not installed";
  }
  const auto told = [&](const std::string& function) {
    const std::string script = "cd " + shell_quoted({folder_.path()}) +
                               "; compdef() { : }; _describe() { print -rl -- $commands };"
                               "_arguments() { print -rl -- \"$@\"; state=command };"
                               "source ./zsh; " +
                               function + "; true";
    return lines_of({"zsh", "-f", "-c", script});
  };
  EXPECT_THAT(
      told("_lockstep_launch"),
      testing::IsSupersetOf(
          {"(-n --num-ranks)--num-ranks=[How \\[many\\]\\: it's `N`]:N|cpu|auto:(cpu auto)",
           "--hostfile=[Hosts]:FILE:_files",
           "(-q --quiet)-q[Say \"nothing\" \\\\ $x]",
           "*::argument:_normal"}));
  EXPECT_THAT(told("_lockstep_checkpoint"), testing::Contains("ls:Do it's\\: ls"));
  EXPECT_THAT(told("_lockstep_checkpoint_ls"), testing::Contains("*:file:_files"));
  EXPECT_THAT(lines_of({"zsh", "-n", (folder_ / "zsh").string()}), IsEmpty());
}

TEST_F(Completion, TheManualPageIsRoffWithoutAWarning) {
  if (!has("man")) {
    GTEST_SKIP() << "man is not installed";
  }
  write("page.1", man_page(command_tree(app_)));
  const std::string page = (folder_ / "page.1").string();
  EXPECT_THAT(
      lines_of(
          {"sh",
           "-c",
           "LC_ALL=C.UTF-8 MANROFFSEQ= man -l --warnings -E UTF-8 -Tutf8 '" + page +
               "' 2>&1 >/dev/null"}),
      IsEmpty());
  const auto shown = ask_program(
      {"sh", "-c", "LC_ALL=C.UTF-8 MANWIDTH=100 man -l -Tutf8 '" + page + "' | col -b"},
      kCompletionTimeoutMs);
  ASSERT_TRUE(shown);
  EXPECT_THAT(
      shown->text,
      testing::AllOf(
          HasSubstr("lockstep checkpoint prune"),
          HasSubstr("-n, --num-ranks N|cpu|auto"),
          HasSubstr("Say \"nothing\" \\ $x."),
          HasSubstr("One of text, tidy, json."),
          HasSubstr(".begins with a dot"),
          HasSubstr("'or' a quote\\n"),
          HasSubstr("EXIT STATUS")));
}

TEST_F(Completion, TheMarkdownPageHasEachCommandAndEscapesTheTextsOfItsTables) {
  EXPECT_THAT(
      markdown_page(command_tree(app_)),
      testing::AllOf(
          HasSubstr("\n## lockstep launch\n\nDo it's: launch.\n\n```text\nlockstep launch -n N"),
          HasSubstr("\n### lockstep checkpoint prune\n"),
          HasSubstr("| `-n`, `--num-ranks N\\|cpu\\|auto` | How \\[many\\]: it's \\`N\\`. One of "
                    "`cpu`, `auto` |\n"),
          HasSubstr("| `-q`, `--quiet` | Say \"nothing\" \\ $x |\n"),
          HasSubstr("```text\nExamples:\n  .begins with a dot\n")));
}

}  // namespace
}  // namespace lockstep::cli
