// SPDX-License-Identifier: Apache-2.0
// What is seen and kept of a run.
#include <fmt/format.h>

#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

/// Of what stands beside an `enabled` that is refused.
constexpr const char* kOff = "means something with enabled only";

/// A section of `DsConfig` that writes curves to files.
template <auto Section>
void add_monitor(std::vector<KeySpec>& keys, const std::string& name) {
  keys.push_back(works(name, KeyKind::kSection, "curves of loss, learning rate and scale"));
  keys.push_back(
      stored<Section, &MonitorSection::enabled>(works(name + ".enabled", KeyKind::kBoolean, "")));
  keys.push_back(stored<Section, &MonitorSection::output_path>(
      works(name + ".output_path", KeyKind::kText, "a folder")));
  keys.push_back(stored<Section, &MonitorSection::job_name>(
      works(name + ".job_name", KeyKind::kText, "a folder in that")));
}

void add_monitors(std::vector<KeySpec>& keys) {
  add_monitor<&DsConfig::tensorboard>(keys, "tensorboard");
  add_monitor<&DsConfig::csv_monitor>(keys, "csv_monitor");
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
      keys.push_back(nullable(ignored(fmt::format("{}.{}", section, name), kind, kOff)));
    }
  }
}

void add_prints(std::vector<KeySpec>& keys) {
  keys.push_back(nullable(stored<&DsConfig::steps_per_print>(
      integer("steps_per_print", 1, "updates between two progress lines; not set: none"))));
  keys.push_back(stored<&DsConfig::wall_clock_breakdown>(
      works("wall_clock_breakdown", KeyKind::kBoolean, "say where a step's time goes")));
  keys.push_back(stored<&DsConfig::memory_breakdown>(works(
      "memory_breakdown",
      KeyKind::kBoolean,
      "log the memory in use around forward, backward and step")));
  keys.push_back(stored<&DsConfig::dump_state>(works(
      "dump_state", KeyKind::kBoolean, "log every value and its origin, before training begins")));
  keys.push_back(nullable(stored<&DsConfig::log_level>(
      {.path = "log_level",
       .kind = KeyKind::kChoice,
       .description = "least level of what is logged",
       .choices = {"debug", "info", "warning", "error"}})));
  keys.push_back(works("timers", KeyKind::kSection, ""));
  keys.push_back(works("timers.throughput", KeyKind::kSection, ""));
  keys.push_back(stored<&DsConfig::throughput_timer>(works(
      "timers.throughput.enabled", KeyKind::kBoolean, "say samples a second beside progress")));
  keys.push_back(ignored(
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
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::enabled>(
      works(flops("enabled"), KeyKind::kBoolean, "")));
  KeySpec factor =
      stored<&DsConfig::flops_profiler, &FlopsProfilerSection::recompute_fwd_factor>(works(
          flops("recompute_fwd_factor"),
          KeyKind::kNumber,
          "how much of forward backward computes again; 1: all of it"));
  factor.least = 0;
  keys.push_back(std::move(factor));
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::profile_step>(
      integer(flops("profile_step"), 1, "number of the update of which a forward is counted")));
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::module_depth>(integer(
      flops("module_depth"), -1, "down to which depth modules are summed up by class; -1: all")));
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::top_modules>(
      integer(flops("top_modules"), 1, "classes of modules shown at each depth")));
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::detailed>(
      works(flops("detailed"), KeyKind::kBoolean, "show every module, and every operation")));
  keys.push_back(nullable(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::output_file>(
      works(flops("output_file"), KeyKind::kText, "write it there instead of logging it"))));
  keys.push_back(
      works("comms_logger", KeyKind::kSection, "sum up what collectives cost; see log_summary()"));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::enabled>(
      works("comms_logger.enabled", KeyKind::kBoolean, "")));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::verbose>(
      works("comms_logger.verbose", KeyKind::kBoolean, "log each one as it ends")));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::debug>(
      works("comms_logger.debug", KeyKind::kBoolean, "tell them apart by dtype and shape, too")));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::prof_all>(
      works("comms_logger.prof_all", KeyKind::kBoolean, "false: prof_ops alone")));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::prof_ops>(works(
      "comms_logger.prof_ops",
      KeyKind::kTexts,
      "names of operations: all_reduce, all_gather, ...")));
}

void add_checkpoint(std::vector<KeySpec>& keys) {
  keys.push_back(works("checkpoint", KeyKind::kSection, ""));
  keys.push_back(stored<&DsConfig::tag_validation>(
      {.path = "checkpoint.tag_validation",
       .kind = KeyKind::kChoice,
       .description = "what happens where ranks save under different tags",
       .choices = {"WARN", "IGNORE", "FAIL"}}));
  keys.push_back(ignored(
      "checkpoint.load_universal",
      KeyKind::kBoolean,
      "every checkpoint can be loaded by any number of ranks, and need not be converted"));
  keys.push_back(stored<&DsConfig::use_node_local_storage>(works(
      "checkpoint.use_node_local_storage",
      KeyKind::kBoolean,
      "each host keeps what its ranks wrote on a disk of its own")));
  keys.push_back(ignored(
      "checkpoint.checkpoint_serialization", KeyKind::kBoolean, "files are safetensors and JSON"));
  keys.push_back(refused(
      "checkpoint.writer", "there is one way to write, in parallel and flushed; delete it"));
  keys.push_back(works("checkpoint.parallel_write", KeyKind::kSection, ""));
  keys.push_back(ignored(
      "checkpoint.parallel_write.pipeline_stage",
      KeyKind::kBoolean,
      "all ranks write at the same time, and there are no pipeline stages"));
}

void add_aio(std::vector<KeySpec>& keys) {
  const std::string why = "how files of offloaded state are read and written is not for tuning";
  keys.push_back(nullable(ignored("aio", KeyKind::kSection, why)));
  for (const char* name : {"block_size", "queue_depth", "intra_op_parallelism", "thread_count"}) {
    KeySpec spec = ignored(std::string("aio.") + name, KeyKind::kInteger, why);
    spec.least = 1;
    keys.push_back(std::move(spec));
  }
  for (const char* name : {"single_submit", "overlap_events"}) {
    keys.push_back(ignored(std::string("aio.") + name, KeyKind::kBoolean, why));
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
