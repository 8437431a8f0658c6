// SPDX-License-Identifier: Apache-2.0
// Keys of monitoring, profiling, checkpoints and file access.
#include "lockstep/ds_config/keys/key_specs.h"

namespace lockstep::ds_config {
namespace {

/// A section of `DsConfig` that writes curves to files.
template <auto Section>
void add_monitor(std::vector<KeySpec>& keys, const std::string& name) {
  keys.push_back(works(name, KeyKind::kSection, "curves of loss, learning rate and scale"));
  keys.push_back(
      stored<Section, &MonitorSection::enabled>(works(name + ".enabled", KeyKind::kBoolean, "")));
  keys.push_back(stored<Section, &MonitorSection::output_path>(
      works(name + ".output_path", KeyKind::kText, "a folder")));
  keys.push_back(stored<Section, &MonitorSection::job_name>(
      works(name + ".job_name", KeyKind::kText, "a folder in output_path")));
}

void add_wandb(std::vector<KeySpec>& keys) {
  keys.push_back(works(
      "wandb",
      KeyKind::kSection,
      "curves of loss, learning rate and scale, as an offline run for `wandb sync`"));
  keys.push_back(stored<&DsConfig::wandb, &WandbSection::enabled>(
      works("wandb.enabled", KeyKind::kBoolean, "")));
  keys.push_back(nullable(stored<&DsConfig::wandb, &WandbSection::group>(
      works("wandb.group", KeyKind::kText, "the run's group"))));
  keys.push_back(nullable(stored<&DsConfig::wandb, &WandbSection::team>(
      works("wandb.team", KeyKind::kText, "the entity that owns the run"))));
  keys.push_back(stored<&DsConfig::wandb, &WandbSection::project>(
      works("wandb.project", KeyKind::kText, "the run's project")));
}

void add_monitors(std::vector<KeySpec>& keys) {
  add_monitor<&DsConfig::tensorboard>(keys, "tensorboard");
  add_monitor<&DsConfig::csv_monitor>(keys, "csv_monitor");
  add_wandb(keys);
  keys.push_back(works("comet", KeyKind::kSection, ""));
  keys.push_back(refused_unless(
      "comet.enabled",
      KeyKind::kBoolean,
      "false",
      "Lockstep has no tracker for Comet; set wandb.enabled, tensorboard.enabled or "
      "csv_monitor.enabled instead"));
  for (const std::string name :
       {"samples_log_interval",
        "project",
        "workspace",
        "api_key",
        "experiment_name",
        "experiment_key",
        "online",
        "mode"}) {
    const KeyKind kind = name == "samples_log_interval" ? KeyKind::kInteger
                         : name == "online"             ? KeyKind::kBoolean
                                                        : KeyKind::kText;
    keys.push_back(nullable(ignored("comet." + name, kind, "has an effect only with enabled")));
  }
}

void add_prints(std::vector<KeySpec>& keys) {
  keys.push_back(nullable(stored<&DsConfig::steps_per_print>(
      integer("steps_per_print", 1, "updates between two progress lines; not set: none"))));
  keys.push_back(stored<&DsConfig::wall_clock_breakdown>(
      works("wall_clock_breakdown", KeyKind::kBoolean, "log the time of each part of a step")));
  keys.push_back(stored<&DsConfig::memory_breakdown>(works(
      "memory_breakdown",
      KeyKind::kBoolean,
      "log the memory in use around forward, backward and step")));
  keys.push_back(stored<&DsConfig::dump_state>(works(
      "dump_state", KeyKind::kBoolean, "log every value and its origin, before training begins")));
  keys.push_back(nullable(stored<&DsConfig::log_level>(
      {.path = "log_level",
       .kind = KeyKind::kChoice,
       .description = "lowest level that is logged",
       .choices = {"debug", "info", "warning", "error"}})));
  keys.push_back(works("timers", KeyKind::kSection, ""));
  keys.push_back(works("timers.throughput", KeyKind::kSection, ""));
  keys.push_back(stored<&DsConfig::throughput_timer>(works(
      "timers.throughput.enabled", KeyKind::kBoolean, "log samples per second with the progress")));
  keys.push_back(ignored(
      "timers.throughput.synchronized",
      KeyKind::kBoolean,
      "the device is synchronized once for each progress line"));
}

void add_profilers(std::vector<KeySpec>& keys) {
  keys.push_back(works(
      "flops_profiler",
      KeyKind::kSection,
      "count the operations of one forward, by module and by operation"));
  const auto flops = [](const char* name) { return std::string("flops_profiler.") + name; };
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::enabled>(
      works(flops("enabled"), KeyKind::kBoolean, "")));
  KeySpec factor =
      stored<&DsConfig::flops_profiler, &FlopsProfilerSection::recompute_fwd_factor>(works(
          flops("recompute_fwd_factor"),
          KeyKind::kNumber,
          "the part of forward that backward recomputes; 1: all"));
  factor.least = 0;
  keys.push_back(std::move(factor));
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::profile_step>(
      integer(flops("profile_step"), 1, "number of the update whose forward is counted")));
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::module_depth>(integer(
      flops("module_depth"), -1, "largest depth of modules that are summed by class; -1: all")));
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::top_modules>(
      integer(flops("top_modules"), 1, "classes of modules shown at each depth")));
  keys.push_back(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::detailed>(
      works(flops("detailed"), KeyKind::kBoolean, "show every module, and every operation")));
  keys.push_back(
      nullable(stored<&DsConfig::flops_profiler, &FlopsProfilerSection::output_file>(works(
          flops("output_file"),
          KeyKind::kText,
          "the report goes to this file instead of the log"))));
  keys.push_back(
      works("comms_logger", KeyKind::kSection, "sum the time of collectives; see log_summary()"));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::enabled>(
      works("comms_logger.enabled", KeyKind::kBoolean, "")));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::verbose>(
      works("comms_logger.verbose", KeyKind::kBoolean, "log each one at its end")));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::debug>(
      works("comms_logger.debug", KeyKind::kBoolean, "distinguish them by dtype and shape, too")));
  keys.push_back(stored<&DsConfig::comms_logger, &CommsLoggerSection::prof_all>(
      works("comms_logger.prof_all", KeyKind::kBoolean, "false: only prof_ops")));
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
       .description = "the reaction if ranks save under different tags",
       .choices = {"WARN", "IGNORE", "FAIL"}}));
  keys.push_back(ignored(
      "checkpoint.load_universal",
      KeyKind::kBoolean,
      "any number of ranks can load every checkpoint, without conversion"));
  keys.push_back(stored<&DsConfig::use_node_local_storage>(works(
      "checkpoint.use_node_local_storage",
      KeyKind::kBoolean,
      "each host stores the files of its ranks on its own disk")));
  keys.push_back(ignored(
      "checkpoint.checkpoint_serialization", KeyKind::kBoolean, "files are safetensors and JSON"));
  keys.push_back(
      refused("checkpoint.writer", "files are always written in parallel and flushed; delete it"));
  keys.push_back(works("checkpoint.parallel_write", KeyKind::kSection, ""));
  keys.push_back(ignored(
      "checkpoint.parallel_write.pipeline_stage",
      KeyKind::kBoolean,
      "all ranks write at the same time, without pipeline stages"));
}

void add_aio(std::vector<KeySpec>& keys) {
  const std::string why = "access to files of offloaded state is not configurable";
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
      "files are read through the host's memory; delete it"));
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
