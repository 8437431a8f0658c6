// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/config_arguments.h"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/engine/engine.h"
#include "lockstep/engine/test_engine.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A command line as main() gets it.
struct Line {
  explicit Line(std::vector<std::string> given) : words(std::move(given)) {
    for (std::string& word : words) {
      argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    argc = static_cast<int>(words.size());
  }
  std::vector<std::string> left() const { return {argv.begin(), argv.begin() + argc}; }

  std::vector<std::string> words;
  std::vector<char*> argv;
  int argc = 0;
};

TEST(ConfigArguments, AreTakenOutOfTheProgramsOwn) {
  for (const std::vector<std::string>& config :
       {std::vector<std::string>{"--deepspeed_config", "ds.json"},
        std::vector<std::string>{"--deepspeed_config=ds.json"}}) {
    std::vector<std::string> words{"train", "--lr", "1", "--deepspeed"};
    words.insert(words.end(), config.begin(), config.end());
    words.emplace_back("data");
    Line line(words);
    const ConfigArguments found = add_config_arguments(line.argc, line.argv.data());
    EXPECT_TRUE(found.deepspeed);
    EXPECT_EQ(found.deepspeed_config, "ds.json");
    EXPECT_THAT(line.left(), ElementsAre("train", "--lr", "1", "data"));
    EXPECT_EQ(line.argv[4], nullptr);
  }
}

TEST(ConfigArguments, NeedNotBeThereAndEndWhereTheProgramsRestBegins) {
  Line line({"train", "--", "--deepspeed", "--deepspeed_config"});
  const ConfigArguments found = add_config_arguments(line.argc, line.argv.data());
  EXPECT_FALSE(found.deepspeed);
  EXPECT_TRUE(found.deepspeed_config.empty());
  EXPECT_THAT(line.left(), ElementsAre("train", "--", "--deepspeed", "--deepspeed_config"));
}

TEST(ConfigArguments, TheLastCountsAndOldNamesWork) {
  Line line({"train", "--deepspeed_config", "a", "--deepscale_config", "b", "--deepscale"});
  const ConfigArguments found = add_config_arguments(line.argc, line.argv.data());
  EXPECT_TRUE(found.deepspeed);
  EXPECT_EQ(found.deepspeed_config, "b");
  EXPECT_THAT(line.left(), ElementsAre("train"));
}

TEST(ConfigArguments, InvalidArgumentsAreRefusedAndNoneIsApplied) {
  Line open({"train", "--deepspeed", "--deepspeed_config"});
  EXPECT_THAT(
      [&] { add_config_arguments(open.argc, open.argv.data()); },
      ThrowsMessage<ConfigError>(HasSubstr("--deepspeed_config needs a file")));
  EXPECT_EQ(open.left().size(), 3U);
  Line valued({"train", "--deepspeed=ds.json"});
  EXPECT_THAT(
      [&] { add_config_arguments(valued.argc, valued.argv.data()); },
      ThrowsMessage<ConfigError>(HasSubstr("--deepspeed takes no value")));
}

TEST(ConfigArguments, InitializeTakesTheFileTheyNameAndNoSecondOne) {
  const TestFolder folder;
  const auto file = folder.path() / "ds.json";
  std::ofstream(file) << simple_config(3);
  on_engine_ranks(1, "", [&](InitializeOptions options) {
    options.args.deepspeed_config = file;
    InitializeOptions both = options;
    both.config_json = simple_config(1);
    EngineNet net;
    EXPECT_THAT(
        [&] { initialize(net, std::move(both)); },
        ThrowsMessage<ConfigError>(HasSubstr("on the command line; give only one")));
    auto [engine, optimizer, none, scheduler] = initialize(net, std::move(options));
    EXPECT_EQ(engine.gradient_accumulation_steps(), 3);
  });
}

}  // namespace
}  // namespace lockstep
