// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/schedule_command.h"

#include <utility>

#include <fmt/format.h>

#include "cli/common/arguments.h"
#include "cli/common/choices.h"
#include "cli/common/numbers.h"
#include "cli/common/usage_formatter.h"
#include "cli/schedule/pipeline_report.h"
#include "cli/schedule/schedule_report.h"

namespace lockstep::cli {
namespace {

constexpr const char* kScheduleCommand = "lockstep schedule";
constexpr double kMostRate = 1e6;

constexpr const char* kScheduleFooter = R"(Examples:
  lockstep schedule ds_config.json --steps 5000
  lockstep schedule ds_config.json --steps 5000 --plot
  lockstep schedule ds_config.json --steps 5000 --json | jq .lr
  lockstep schedule --pipeline 1f1b --stages 4 --micro-batches 8
  lockstep schedule --pipeline interleaved --stages 4 --micro-batches 8 --chunks 2
  lockstep schedule --pipeline all --stages 4 --micro-batches 8

With a FILE, prints the learning rates (and momenta) of its scheduler section: at construction,
which is step 0, and after each step. The n-th update of a run uses the rate of step n - 1. A long
table shows some of the steps, always those where a phase begins or ends; --json has all.

With --pipeline, draws which micro-batch each rank of a pipeline computes at which time, if the
forward of a stage, its backward for inputs and its backward for weights each take 1 unit of time,
and messages none. Below the picture are the bubble, which is the time in which ranks are idle, and
the most micro-batches whose activations each rank holds at once. all compares the schedules.

Exit code: 0; 2 for a file with errors or without a scheduler, or a usage error.)";

std::vector<std::string> pipeline_names() {
  std::vector<std::string> names;
  for (const pipeline_schedule::ScheduleKind kind : pipeline_schedule::kScheduleKinds) {
    names.push_back(name_of(kind));
  }
  names.emplace_back("all");
  return names;
}

/// Returns the kind of a name in pipeline_names(); nothing for "all".
std::optional<pipeline_schedule::ScheduleKind> kind_of(const std::string& name) {
  for (const pipeline_schedule::ScheduleKind kind : pipeline_schedule::kScheduleKinds) {
    if (name_of(kind) == name) {
      return kind;
    }
  }
  return std::nullopt;
}

/// An option, and whether it was given.
using Given = std::pair<const char*, bool>;

void refuse_given(const std::vector<Given>& options, const std::string& why) {
  for (const auto& [name, given] : options) {
    if (given) {
      throw ConfigError(kScheduleCommand, fmt::format("{} {}", name, why));
    }
  }
}

}  // namespace

ScheduleCommand::ScheduleCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "schedule", "Show the learning rates of a ds_config.json, or a pipeline's schedule")) {
  set_help(*command_, "lockstep schedule FILE|--pipeline NAME [OPTIONS] [--json]", kScheduleFooter);
  command_->add_option("--steps", steps_, "Number of steps")
      ->type_name("N")
      ->check(integer_between(1, kMostScheduleSteps));
  command_->add_option("--lr", lr_, "The optimizer's rate, instead of the file's")
      ->type_name("RATE")
      ->check(number_between(0, kMostRate));
  command_->add_flag("--plot", plot_, "Draw a plot of the rates");
  command_->add_option("--pipeline", pipeline_, "Draw the schedule of a pipeline")
      ->type_name("NAME")
      ->check(one_of(pipeline_names()));
  command_->add_option("--stages", stages_, "Number of stages of the pipeline, one on each rank")
      ->type_name("P")
      ->check(integer_between(1, kMostPipelineStages));
  command_->add_option("--micro-batches", micro_batches_, "Number of micro-batches of an update")
      ->type_name("M")
      ->check(integer_between(1, kMostPipelineMicroBatches));
  command_
      ->add_option(
          "--chunks",
          chunks_,
          "Number of chunks of each stage, computed in turn (interleaved: 2, else 1)")
      ->type_name("V")
      ->check(integer_between(1, kMostPipelineChunks));
  command_->add_flag("--json", json_, "Print one JSON object, also for errors");
}

Report ScheduleCommand::rates_report(const std::vector<std::string>& words) const {
  refuse_given(
      {{"--stages", stages_.has_value()},
       {"--micro-batches", micro_batches_.has_value()},
       {"--chunks", chunks_.has_value()}},
      "describes a pipeline; expected --pipeline NAME, too");
  expect_words(kScheduleCommand, words, 1, 1, "one file, like ds_config.json");
  if (!steps_) {
    throw ConfigError(kScheduleCommand, "--steps N is missing; expected the number of steps");
  }
  if (json_ && plot_) {
    throw ConfigError(kScheduleCommand, "--json and --plot are both given; give only one");
  }
  return schedule_report(
      {.file = words[0], .steps = *steps_, .base_lr = lr_, .plot = plot_, .log_errors = !json_});
}

Report ScheduleCommand::pipeline_report_of(const std::vector<std::string>& words) const {
  refuse_given(
      {{"--steps", steps_.has_value()}, {"--lr", lr_.has_value()}, {"--plot", plot_}},
      "is about the learning rates of a file, and --pipeline is given; give only one of them");
  expect_no_words(std::string(kScheduleCommand) + " --pipeline", words);
  if (!stages_) {
    throw ConfigError(
        kScheduleCommand, "--stages P is missing; expected the number of stages of the pipeline");
  }
  if (!micro_batches_) {
    throw ConfigError(
        kScheduleCommand,
        "--micro-batches M is missing; expected the number of micro-batches of an update");
  }
  return pipeline_report(
      {.kind = kind_of(pipeline_),
       .stages = *stages_,
       .micro_batches = *micro_batches_,
       .chunks = chunks_,
       .columns = terminal_columns()});
}

int ScheduleCommand::run(const std::vector<std::string>& words) const {
  if (pipeline_.empty()) {
    return print_report("lockstep.schedule", json_, [&] { return rates_report(words); });
  }
  return print_report(
      "lockstep.schedule.pipeline", json_, [&] { return pipeline_report_of(words); });
}

}  // namespace lockstep::cli
