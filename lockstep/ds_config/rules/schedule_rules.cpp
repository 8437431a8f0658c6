// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "lockstep/ds_config/parameters/group_rates.h"
#include "lockstep/ds_config/rules/section_rules.h"

namespace lockstep::ds_config {
namespace {

/// Notes a schedule with one rate for muP's optimizers, whose groups have different rates.
void note_one_rate(
    KeyReader& reader,
    const SchedulerSection& section,
    const schedule::Schedule& schedule,
    const OptimizerSection& optimizer) {
  if (!scales_rates(optimizer) || schedule.groups()) {
    return;
  }
  constexpr int64_t kLong = 1'000'000;
  const int64_t last = std::min(schedule.total_steps().value_or(kLong), kLong);
  bool is_ever_above_0 = false;
  for (int64_t step = 1; step <= last; step *= 2) {
    const double rate = schedule.lr(step, 1);
    if (rate != schedule.lr(step, 2)) {
      return;
    }
    is_ever_above_0 = is_ever_above_0 || rate != 0;
  }
  if (is_ever_above_0) {
    reader.note(
        reader.find("scheduler.type")->value->place,
        fmt::format(
            "{} sets one rate for all parameter groups and overwrites the rates that {} scales to "
            "the model's width; use a schedule that multiplies the rates, like WarmupLR without "
            "warmup_max_lr",
            section.name.value,
            reader.find("optimizer.type")->value->text));
  }
}

/// Refuses a schedule that cycles a value that the optimizer lacks, or does not read again.
void check_momentum(
    KeyReader& reader,
    const SchedulerSection& section,
    const schedule::Schedule& schedule,
    const OptimizerSection& optimizer) {
  if (!schedule.momentum(0)) {
    return;
  }
  const bool betas = has_betas(optimizer);
  const KeyValue& type = *reader.find("scheduler.type");
  const std::string& optimizer_type = reader.find("optimizer.type")->value->text;
  if (schedule.cycles_betas_only() && !betas) {
    reader.note(
        type.value->place,
        fmt::format(
            "{} cycles betas, which {} does not have; its momentum stays constant, as in "
            "DeepSpeed; write cycle_momentum: false",
            section.name.value,
            optimizer_type));
    return;
  }
  if (!betas && !has_option(optimizer, "momentum")) {
    reader.error(
        type.value->place,
        fmt::format(
            "{} cycles momentum, and {} has neither betas nor momentum; write cycle_momentum: "
            "false",
            section.name.value,
            optimizer_type));
    return;
  }
  if (optimizer.parameters.has("capturable") && optimizer.parameters.flag("capturable")) {
    reader.error(
        reader.find("optimizer.params")->value->find("capturable")->place,
        fmt::format(
            "optimizer.params.capturable cannot be combined with {}, which cycles momentum: a "
            "captured update does not read momentum again; delete capturable, or write "
            "cycle_momentum: false",
            section.name.value));
  }
}

/// Checks lists with one value for each parameter group.
void check_groups(
    KeyReader& reader,
    const SchedulerSection& section,
    const schedule::Schedule& schedule,
    const OptimizerSection& optimizer) {
  const size_t most = optimizer.name.value == "muon" ? 2 : 1;
  if (!schedule.groups() || scales_rates(optimizer) || *schedule.groups() <= most) {
    return;
  }
  for (const config::Entry& entry : reader.find("scheduler.params")->value->entries) {
    if (entry.value.kind == config::Node::Kind::kList && entry.value.items.size() > 1) {
      reader.error(
          entry.value.place,
          fmt::format(
              "scheduler.params.{} of {} has values for {} parameter groups, but the file's {} has "
              "{}; write one number, or delete optimizer and pass initialize your own",
              entry.key,
              section.name.value,
              *schedule.groups(),
              reader.find("optimizer.type")->value->text,
              most == 1 ? "one" : "two at most"));
      return;
    }
  }
}

}  // namespace

void apply_schedule_rules(KeyReader& reader, const DsConfig& config) {
  if (!config.optimizer || !config.scheduler || !config.scheduler->schedule) {
    return;
  }
  const schedule::Schedule& schedule = *config.scheduler->schedule;
  note_one_rate(reader, *config.scheduler, schedule, *config.optimizer);
  check_momentum(reader, *config.scheduler, schedule, *config.optimizer);
  check_groups(reader, *config.scheduler, schedule, *config.optimizer);
}

}  // namespace lockstep::ds_config
