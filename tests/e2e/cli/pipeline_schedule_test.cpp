// SPDX-License-Identifier: Apache-2.0
// `lockstep schedule --pipeline`: output, errors and exit codes.
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/text/split.h"
#include "tests/e2e/harness/lockstep_run.h"

namespace lockstep::e2e {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

TEST(PipelineScheduleCommand, DrawsASchedule) {
  const Outcome outcome =
      run_lockstep({"schedule", "--pipeline", "1f1b", "--stages", "2", "--micro-batches", "4"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(
      outcome.out,
      StartsWith("1f1b: 2 stages, 4 micro-batches\n\n"
                 "time     0                             10\n"
                 "rank 0   0  1  .  . B0==== 2 B1==== 3 B2==== . B3====\n"
                 "rank 1   .  0 B0==== 1 B1==== 2 B2==== 3 B3==== .  .\n"));
}

TEST(PipelineScheduleCommand, ComparesAllSchedulesAsJson) {
  const Json json = json_of(
      {"schedule", "--pipeline=all", "--stages=4", "--micro_batches=8", "--chunks=4", "--json"},
      0,
      "lockstep.schedule.pipeline/1");
  std::vector<std::pair<std::string, int>> found;
  for (const Json& entry : json["schedules"]) {
    found.emplace_back(entry["pipeline"], entry["chunks"]);
  }
  EXPECT_THAT(
      found,
      testing::ElementsAre(
          std::pair("gpipe", 1),
          std::pair("1f1b", 1),
          std::pair("interleaved", 4),
          std::pair("zero-bubble", 1),
          std::pair("zero-bubble", 4)));
}

TEST(PipelineScheduleCommand, PrintsWhatThePageShows) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/pipeline.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string begin = "```text\n$ lockstep ";
  int blocks = 0;
  for (size_t at = page.find(begin); at != std::string::npos; at = page.find(begin, at)) {
    at += begin.size();
    const size_t line_end = page.find('\n', at);
    const size_t block_end = page.find("```", at);
    const Outcome outcome = run_lockstep(split(page.substr(at, line_end - at), ' '));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(page.substr(line_end + 1, block_end - line_end - 1), outcome.out);
    ++blocks;
  }
  EXPECT_EQ(blocks, 3);
}

TEST(PipelineScheduleCommand, RefusesACallThatIsIncompleteOrContradictory) {
  const Words shape = {"--stages", "4", "--micro-batches", "8"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), "schedule");
    words.insert(words.end(), shape.begin(), shape.end());
    return words;
  };
  const std::vector<std::pair<Words, std::string>> calls = {
      {{"schedule", "--pipeline", "1f1b", "--micro-batches", "8"}, "--stages P is missing"},
      {{"schedule", "--pipeline", "1f1b", "--stages", "4"}, "--micro-batches M is missing"},
      {with({"--pipeline", "1f1c"}), "did you mean '1f1b'?"},
      {with({"ds_config.json", "--steps", "5"}),
       "--stages describes a pipeline; expected --pipeline NAME, too"},
      {with({"--pipeline", "1f1b", "ds_config.json"}), "unexpected argument 'ds_config.json'"},
      {with({"--pipeline", "1f1b", "--steps", "5"}),
       "--steps is about the learning rates of a file, and --pipeline is given"},
      {with({"--pipeline", "1f1b", "--plot"}), "--plot is about the learning rates of a file"},
      {with({"--pipeline", "gpipe", "--chunks", "2"}), "got 2 chunks per rank for gpipe"},
      {with({"--pipeline", "interleaved", "--chunks", "27"}), "from 1 to 26"},
      {{"schedule", "--pipeline", "all", "--stages", "0", "--micro-batches", "8"},
       "expected a whole number from 1"}};
  for (const auto& [words, message] : calls) {
    const Outcome outcome = run_lockstep(words);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

}  // namespace
}  // namespace lockstep::e2e
