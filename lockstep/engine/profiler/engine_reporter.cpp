// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/engine_reporter.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/log.h"
#include "lockstep/tracking/registry/registry.h"
#include "lockstep/tracking/wandb/wandb_tracker.h"

namespace lockstep {
namespace {

/// Formats a line as DeepSpeed does; `suffix` is "_microstep" or empty.
std::string line_of(const MicroStepTimes& timers, const char* suffix) {
  return fmt::format(
      "time (ms) | fwd{0}: {1:.2f} | bwd{0}: {2:.2f} | bwd_inner{0}: {3:.2f} | bwd_allreduce{0}: "
      "{4:.2f} | step{0}: {5:.2f}",
      suffix,
      timers.forward_ms,
      timers.backward_ms,
      timers.backward_inner_ms,
      timers.backward_allreduce_ms,
      timers.step_ms);
}

}  // namespace

EngineReporter::EngineReporter(const ds_config::DsConfig& config, bool is_main_process)
    : steps_per_print_(is_main_process ? config.steps_per_print.value : std::nullopt),
      breakdown_(is_main_process && config.wall_clock_breakdown.value),
      checkpoints_(is_main_process && config.activation_checkpointing.profile.value),
      throughput_(config.throughput_timer.value) {
  const auto add = [&](const char* name, const ds_config::MonitorSection& section) {
    if (is_main_process && section.enabled.value) {
      const std::string& folder = section.output_path.value;
      trackers_.push_back(tracking::make_tracker(
          name,
          {.project_dir = folder.empty() ? "." : folder, .project_name = section.job_name.value}));
    }
  };
  add("tensorboard", config.tensorboard);
  add("csv", config.csv_monitor);
  if (is_main_process && config.wandb.enabled.value) {
    trackers_.push_back(std::make_shared<tracking::WandbTracker>(
        ".",
        tracking::WandbOptions{
            .project = config.wandb.project.value,
            .entity = config.wandb.team.value.value_or(""),
            .group = config.wandb.group.value.value_or("")}));
  }
}

void EngineReporter::finish() {
  for (const auto& tracker : trackers_) {
    tracker->finish();
  }
}

void EngineReporter::restart_throughput(int64_t global_samples) {
  samples_at_print_ = global_samples;
  last_print_ = std::chrono::steady_clock::now();
}

void EngineReporter::log(const tracking::Values& values, int64_t samples) {
  for (const auto& tracker : trackers_) {
    tracker->log(values, samples);
  }
}

void EngineReporter::report_micro_step(const MicroStepTimes& timers) const {
  if (breakdown_) {
    log_info(line_of(timers, "_microstep"));
  }
}

void EngineReporter::report_update(const UpdateFacts& facts) {
  if (!trackers_.empty()) {
    tracking::Values values;
    if (facts.loss) {
      values["Train/Samples/train_loss"] = *facts.loss;
    }
    if (!facts.lr.empty()) {
      values["Train/Samples/lr"] = facts.lr.front();
    }
    if (facts.loss_scale) {
      values["Train/Samples/loss_scale"] = *facts.loss_scale;
    }
    if (breakdown_) {
      values["Train/Samples/elapsed_time_ms_forward"] = facts.timers.forward_ms;
      values["Train/Samples/elapsed_time_ms_backward"] = facts.timers.backward_ms;
      values["Train/Samples/elapsed_time_ms_backward_inner"] = facts.timers.backward_inner_ms;
      values["Train/Samples/elapsed_time_ms_backward_allreduce"] =
          facts.timers.backward_allreduce_ms;
      values["Train/Samples/elapsed_time_ms_step"] = facts.timers.step_ms;
    }
    log(values, facts.global_samples);
  }
  if (breakdown_) {
    log_info(line_of(facts.timers, ""));
  }
  if (checkpoints_ && facts.checkpoints) {
    log_info(fmt::format(
        "time (ms) | checkpoint forward: {:.2f} | checkpoint backward: {:.2f} | checkpoints: {}",
        facts.checkpoints->forward_ms,
        facts.checkpoints->backward_ms,
        facts.checkpoints->checkpoints));
  }
  if (steps_per_print_ && facts.global_steps % *steps_per_print_ == 0) {
    std::string line = fmt::format(
        "step={}, skipped={}, lr=[{}]",
        facts.global_steps,
        facts.skipped_steps,
        fmt::join(facts.lr, ", "));
    if (!facts.mom.empty()) {
      line += fmt::format(", mom=[{}]", fmt::join(facts.mom, ", "));
    }
    const auto now = std::chrono::steady_clock::now();
    if (throughput_) {
      const double seconds = std::chrono::duration<double>(now - last_print_).count();
      line += fmt::format(
          ", samples per second={:.1f}",
          static_cast<double>(facts.global_samples - samples_at_print_) / seconds);
    }
    last_print_ = now;
    samples_at_print_ = facts.global_samples;
    log_info(line);
  }
}

}  // namespace lockstep
