// SPDX-License-Identifier: Apache-2.0
// What is seen and kept of a run.
#include <fmt/format.h>

#include "lockstep/ds_config/key_specs.h"

namespace lockstep::ds_config {
namespace {

/// Of what stands beside an `enabled` that is refused.
constexpr const char* kOff = "means something with enabled only";

void add_monitors(std::vector<KeySpec>& keys) {
  for (const std::string section : {"tensorboard", "csv_monitor"}) {
    keys.push_back(works(section, KeyKind::kSection, "curves of loss, learning rate and scale"));
    keys.push_back(works(section + ".enabled", KeyKind::kBoolean, ""));
    keys.push_back(works(section + ".output_path", KeyKind::kText, "a folder"));
    keys.push_back(works(section + ".job_name", KeyKind::kText, "a folder in that"));
  }
  const std::string online =
      "talks to a service by a library of Python; set tensorboard.enabled instead, whose files it "
      "can import";
  for (const auto& [section, names] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"wandb", {"group", "team", "project"}},
           {"comet",
            {"samples_log_interval",
             "project",
             "workspace",
             "api_key",
             "experiment_name",
             "experiment_key",
             "online",
             "mode"}}}) {
    keys.push_back(works(section, KeyKind::kSection, ""));
    keys.push_back(refused_unless(section + ".enabled", KeyKind::kBoolean, "false", online));
    for (const std::string& name : names) {
      const KeyKind kind = name == "samples_log_interval" ? KeyKind::kInteger
                           : name == "online"             ? KeyKind::kBoolean
                                                          : KeyKind::kText;
      keys.push_back(nullable(nothing(fmt::format("{}.{}", section, name), kind, kOff)));
    }
  }
}

void add_prints(std::vector<KeySpec>& keys) {
  keys.push_back(
      nullable(whole("steps_per_print", 1, "say progress every so many updates; not set: never")));
  keys.push_back(works("wall_clock_breakdown", KeyKind::kBoolean, "say where a step's time goes"));
  keys.push_back(works(
      "memory_breakdown",
      KeyKind::kBoolean,
      "log the memory in use around forward, backward and step"));
  keys.push_back(works(
      "dump_state", KeyKind::kBoolean, "log every value and who said it, before training begins"));
  keys.push_back(nullable(
      {.path = "log_level",
       .kind = KeyKind::kChoice,
       .words = "least level of what is logged",
       .choices = {"debug", "info", "warning", "error"}}));
  keys.push_back(works("timers", KeyKind::kSection, ""));
  keys.push_back(works("timers.throughput", KeyKind::kSection, ""));
  keys.push_back(works(
      "timers.throughput.enabled", KeyKind::kBoolean, "say samples a second beside progress"));
  keys.push_back(nothing(
      "timers.throughput.synchronized",
      KeyKind::kBoolean,
      "the device is waited for once per line that is printed"));
}

void add_profilers(std::vector<KeySpec>& keys) {
  keys.push_back(works(
      "flops_profiler",
      KeyKind::kSection,
      "count what one forward computes, by module and by operation"));
  const auto flops = [](const char* name) { return std::string("flops_profiler.") + name; };
  keys.push_back(works(flops("enabled"), KeyKind::kBoolean, ""));
  KeySpec factor = works(
      flops("recompute_fwd_factor"),
      KeyKind::kNumber,
      "how much of forward backward computes again; 1: all of it");
  factor.least = 0;
  keys.push_back(std::move(factor));
  keys.push_back(whole(
      flops("profile_step"),
      1,
      "so many updates come before the one of which a forward is counted"));
  keys.push_back(whole(
      flops("module_depth"), -1, "down to which depth modules are summed up by class; -1: all"));
  keys.push_back(whole(flops("top_modules"), 1, "so many classes of modules at each depth"));
  keys.push_back(
      works(flops("detailed"), KeyKind::kBoolean, "show every module, and every operation"));
  keys.push_back(nullable(
      works(flops("output_file"), KeyKind::kText, "write it there instead of logging it")));
  keys.push_back(
      works("comms_logger", KeyKind::kSection, "sum up what collectives cost; see log_summary()"));
  keys.push_back(works("comms_logger.enabled", KeyKind::kBoolean, ""));
  keys.push_back(works("comms_logger.verbose", KeyKind::kBoolean, "log each one as it ends"));
  keys.push_back(
      works("comms_logger.debug", KeyKind::kBoolean, "tell them apart by dtype and shape, too"));
  keys.push_back(works("comms_logger.prof_all", KeyKind::kBoolean, "false: prof_ops alone"));
  keys.push_back(works(
      "comms_logger.prof_ops",
      KeyKind::kTexts,
      "names of operations: all_reduce, all_gather, ..."));
}

void add_checkpoint(std::vector<KeySpec>& keys) {
  keys.push_back(works("checkpoint", KeyKind::kSection, ""));
  keys.push_back(
      {.path = "checkpoint.tag_validation",
       .kind = KeyKind::kChoice,
       .words = "what happens where ranks save under different tags",
       .choices = {"WARN", "IGNORE", "FAIL"}});
  keys.push_back(nothing(
      "checkpoint.load_universal",
      KeyKind::kBoolean,
      "every checkpoint can be loaded by any number of ranks, and need not be converted"));
  keys.push_back(works(
      "checkpoint.use_node_local_storage",
      KeyKind::kBoolean,
      "each host keeps what its ranks wrote on a disk of its own"));
  keys.push_back(nothing(
      "checkpoint.checkpoint_serialization", KeyKind::kBoolean, "files are safetensors and JSON"));
  keys.push_back(refused(
      "checkpoint.writer", "there is one way to write, in parallel and flushed; delete it"));
  keys.push_back(works("checkpoint.parallel_write", KeyKind::kSection, ""));
  keys.push_back(nothing(
      "checkpoint.parallel_write.pipeline_stage",
      KeyKind::kBoolean,
      "all ranks write at the same time, and there are no pipeline stages"));
}

void add_aio(std::vector<KeySpec>& keys) {
  const std::string why = "how files of offloaded state are read and written is not for tuning";
  keys.push_back(nullable(nothing("aio", KeyKind::kSection, why)));
  for (const char* name : {"block_size", "queue_depth", "intra_op_parallelism", "thread_count"}) {
    KeySpec spec = nothing(std::string("aio.") + name, KeyKind::kInteger, why);
    spec.least = 1;
    keys.push_back(std::move(spec));
  }
  for (const char* name : {"single_submit", "overlap_events"}) {
    keys.push_back(nothing(std::string("aio.") + name, KeyKind::kBoolean, why));
  }
  keys.push_back(refused_unless(
      "aio.use_gds",
      KeyKind::kBoolean,
      "false",
      "files come by way of the host's memory; delete it"));
}

}  // namespace

std::vector<KeySpec> watching_keys() {
  std::vector<KeySpec> keys;
  add_monitors(keys);
  add_prints(keys);
  add_profilers(keys);
  add_checkpoint(keys);
  add_aio(keys);
  return keys;
}

}  // namespace lockstep::ds_config
