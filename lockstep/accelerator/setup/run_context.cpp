// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/setup/run_context.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>

#include "lockstep/accelerator/setup/equal_options.h"
#include "lockstep/accelerator/setup/mesh.h"
#include "lockstep/accelerator/zero_setup/resolve_zero.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/cores.h"
#include "lockstep/base/log.h"
#include "lockstep/base/memory/keep_memory.h"
#include "lockstep/base/rank.h"
#include "lockstep/precision/cpu_bf16.h"

namespace lockstep::internal {
namespace {

std::optional<bool> either_boolean(const Environment& environment, const std::string& name) {
  const auto ours = environment.boolean("LOCKSTEP_" + name);
  return ours ? ours : environment.boolean("ACCELERATE_" + name);
}

/// Limits this rank's threads to its share of the cores, unless the launcher has set them.
/// Otherwise every rank would start a thread for every core.
void share_cores(const WorldSpec& world) {
  if (world.size == 1 || Environment::process().text("OMP_NUM_THREADS")) {
    return;
  }
  // srun and mpirun may have bound this rank to its share already.
  const int cores = available_cores();
  const int share = static_cast<int>(std::thread::hardware_concurrency()) / world.local_size;
  at::set_num_threads(cores > share ? std::max(1, cores / world.local_size) : cores);
}

/// Warns once per process: a program may make many Accelerators.
void warn_of_emulated_bf16() {
  static std::once_flag warned;
  std::call_once(warned, [] {
    log_warning(
        "[accelerator] mixed_precision is bf16, and this CPU has no bf16 instructions: libtorch "
        "emulates them, which is several times slower than float32; set mixed_precision to no on "
        "this machine (lockstep::cpu_has_bf16() reports whether a CPU has them)");
  });
}

Precision resolve_precision(const AcceleratorOptions& options, const Environment& environment) {
  if (options.mixed_precision) {
    return *options.mixed_precision;
  }
  const auto text = either_text(environment, "MIXED_PRECISION");
  return text ? parse_precision(*text) : Precision::kNo;
}

void check_rng_types(const AcceleratorOptions& options) {
  for (const data::RngType type : options.rng_types) {
    if (type == data::RngType::kGenerator) {
      throw ConfigError(
          "accelerator",
          "rng_types cannot contain kGenerator: loaders have no generator, since seed and epoch "
          "determine their order; use kTorch for augmentation with torch's generator");
    }
  }
}

GradientAccumulationPlugin resolve_accumulation(
    const AcceleratorOptions& options, const Environment& environment) {
  if (options.gradient_accumulation_plugin && options.gradient_accumulation_steps != 1) {
    throw ConfigError(
        "accelerator",
        "gradient_accumulation_steps and gradient_accumulation_plugin are both set; give only "
        "one");
  }
  const auto deepspeed = options.deepspeed_plugin
                             ? options.deepspeed_plugin->gradient_accumulation_steps
                             : std::nullopt;
  if (deepspeed &&
      (options.gradient_accumulation_plugin || options.gradient_accumulation_steps != 1)) {
    throw ConfigError(
        "accelerator",
        "deepspeed_plugin and the Accelerator's own options both set gradient accumulation; give "
        "only one");
  }
  GradientAccumulationPlugin plugin =
      options.gradient_accumulation_plugin.value_or(GradientAccumulationPlugin{
          .num_steps = deepspeed.value_or(options.gradient_accumulation_steps)});
  const std::string name = "GRADIENT_ACCUMULATION_STEPS";
  for (const std::string prefix : {"ACCELERATE_", "LOCKSTEP_"}) {
    plugin.num_steps =
        environment.integer(prefix + name, 1, int64_t{1} << 30).value_or(plugin.num_steps);
  }
  if (plugin.num_steps < 1) {
    throw ConfigError(
        "accelerator",
        fmt::format("expected 1 or more gradient accumulation steps; got {}", plugin.num_steps));
  }
  if (plugin.adjust_scheduler && options.scheduler_steps != SchedulerSteps::kAccelerate) {
    throw ConfigError(
        "accelerator",
        "adjust_scheduler needs scheduler_steps = SchedulerSteps::kAccelerate; otherwise a "
        "schedule counts updates");
  }
  return plugin;
}

at::Device choose_device(
    const AcceleratorOptions& options, const WorldSpec& world, const Environment& environment) {
  const bool cpu = options.cpu.value_or(either_boolean(environment, "USE_CPU").value_or(false));
  const auto type = cpu ? std::nullopt : at::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  if (count == 0) {
    return at::kCPU;
  }
  if (options.shared_parameters) {
    throw ConfigError(
        "accelerator",
        "shared_parameters needs processes that train on CPUs; turn it off, or set cpu");
  }
  const int index = world.local_rank % count;
  const at::Device device(*type, static_cast<at::DeviceIndex>(index));
  at::accelerator::setDeviceIndex(device.index());
  return device;
}

/// Returns ZeRO's settings, after all others were compared. Collective.
std::optional<ZeroPlugin> configured_zero(
    const RunContext& context, const Environment& environment) {
  // Those that shard one model.
  ZeroFacts facts{.processes = configured_mesh(context, /*shards=*/false).replicas()};
  const bool depends_on_hosts = needs_host_size(context.options, environment);
  expect_equal_options(context, depends_on_hosts);
  if (depends_on_hosts) {
    facts.host_size = uniform_host_size(context.world, context.group);
  }
  ResolvedZero resolved = resolve_zero(context.options, environment, facts);
  if (context.rank() == 0) {
    for (const std::string& variable : resolved.not_used) {
      log_warning("not used: " + variable);
    }
  }
  return std::move(resolved.plugin);
}

/// Resolves the project's folders, which two options can set.
void resolve_folders(AcceleratorOptions& options) {
  ProjectConfiguration& project = options.project_config;
  if (!project.project_dir.empty()) {
    if (!options.project_dir.empty() && options.project_dir != project.project_dir) {
      throw ConfigError(
          "accelerator",
          fmt::format(
              "project_dir is {} and project_config.project_dir {}; give only one",
              options.project_dir.string(),
              project.project_dir.string()));
    }
    options.project_dir = project.project_dir;
  }
  if (project.logging_dir.empty()) {
    project.logging_dir = options.project_dir;
  }
}

/// Resolves record_steps. Throws ConfigError for records without a folder.
void resolve_record_steps(AcceleratorOptions& options, const Environment& environment) {
  const bool is_requested = options.record_steps.value_or(false);
  options.record_steps = options.record_steps
                             ? is_requested
                             : environment.boolean("LOCKSTEP_RECORD_STEPS").value_or(false);
  if (*options.record_steps &&
      (options.project_config.logging_dir.empty() || options.project_name.empty())) {
    throw ConfigError(
        "accelerator",
        fmt::format(
            "{} needs a folder for its files; set AcceleratorOptions::project_dir and project_name",
            is_requested ? "record_steps" : "LOCKSTEP_RECORD_STEPS"));
  }
}

void check_project_numbers(const ProjectConfiguration& project) {
  const auto refuse = [](const char* what, int64_t got, const char* expected) {
    throw ConfigError(
        "ProjectConfiguration", fmt::format("{} is {}; expected {}", what, got, expected));
  };
  if (project.total_limit && *project.total_limit < 1) {
    refuse("total_limit", *project.total_limit, "1 or more, or unset");
  }
  if (project.iteration < 0) {
    refuse("iteration", project.iteration, "0 or more");
  }
  if (project.checkpointing_steps < 0) {
    refuse("checkpointing_steps", project.checkpointing_steps, "0 or more");
  }
}

/// Returns whether to resume. Throws ConfigError for checkpoints without a folder.
bool resolve_resume(
    const AcceleratorOptions& options, const WorldSpec& world, const Environment& environment) {
  const ProjectConfiguration& project = options.project_config;
  bool resume = environment.boolean("LOCKSTEP_RESUME").value_or(false);
  if (resume && options.project_dir.empty() && world.restart_count > 0) {
    // Only the launcher requested it, which does not know whether the program saves.
    log_warning(fmt::format(
        "restart {} starts from the beginning: without AcceleratorOptions::project_dir no "
        "checkpoint exists to resume from; set it",
        world.restart_count));
    resume = false;
  }
  if (options.project_dir.empty() &&
      (project.checkpointing_steps > 0 || project.total_limit || resume)) {
    throw ConfigError(
        "accelerator",
        fmt::format(
            "{} needs a folder to keep checkpoints in; set AcceleratorOptions::project_dir",
            resume ? "--resume (LOCKSTEP_RESUME)" : "ProjectConfiguration"));
  }
  if (project.checkpointing_steps > 0 && !project.automatic_checkpoint_naming) {
    throw ConfigError(
        "ProjectConfiguration",
        "checkpointing_steps needs automatic_checkpoint_naming, which names the folders of "
        "automatic saves; turn it on");
  }
  return resume;
}

void configure(RunContext& context) {
  keep_freed_memory();
  AcceleratorOptions& options = context.options;
  const Environment environment = Environment::process();
  context.precision = resolve_precision(options, environment);
  context.debug = options.debug.value_or(either_boolean(environment, "DEBUG_MODE").value_or(false));
  check_rng_types(options);
  options.gradient_accumulation_plugin = resolve_accumulation(options, environment);
  context.device = choose_device(options, context.world, environment);
  if (context.precision == Precision::kBF16 && context.device.is_cpu() &&
      context.world.local_rank == 0 && !cpu_has_bf16(environment)) {
    warn_of_emulated_bf16();
  }
  resolve_folders(options);
  resolve_record_steps(options, environment);
  check_project_numbers(options.project_config);
  options.mesh = options.mesh.value_or(mesh_from_environment(environment));
  options.zero = configured_zero(context, environment);
  const MeshShape mesh = configured_mesh(context, options.zero.has_value());
  apply_mesh(mesh, options, options.zero ? &*options.zero : nullptr);
  expect_equal_zero(context);
  expect_tensor_lines_on_hosts(context, mesh);
  context.mesh = comm::connect_mesh(context.group, mesh);
  context.resume = resolve_resume(options, context.world, environment);
}

}  // namespace

std::optional<std::string> either_text(const Environment& environment, const std::string& name) {
  auto ours = environment.text("LOCKSTEP_" + name);
  return ours ? ours : environment.text("ACCELERATE_" + name);
}

WorldSpec enter_world(const Environment& environment) {
  WorldSpec world = world_from_environment(environment);
  set_process_rank({world.rank, world.size});
  share_cores(world);
  return world;
}

RunContext connect_run(AcceleratorOptions options) {
  WorldSpec world = enter_world(Environment::process());
  Connection connection = connect_renewable(world, options.connect);
  RunContext context{
      .options = std::move(options),
      .world = std::move(world),
      .group = std::move(connection.group),
      .transport = std::move(connection.transport)};
  configure(context);
  log_debug(fmt::format(
      "rank {} of {} ({}), transport {}",
      context.world.rank,
      context.world.size,
      context.world.source,
      context.group.transport_name()));
  return context;
}

RunContext run_in_group(AcceleratorOptions options, WorldSpec world, Group group) {
  if (world.rank != group.rank() || world.size != group.size()) {
    throw ConfigError(
        "accelerator",
        fmt::format(
            "the world has rank {} of {}, but the group has rank {} of {}; pass the world and the "
            "group of one job",
            world.rank,
            world.size,
            group.rank(),
            group.size()));
  }
  RunContext context{
      .options = std::move(options),
      .world = std::move(world),
      .group = std::move(group),
      .transport = nullptr};
  configure(context);
  return context;
}

}  // namespace lockstep::internal
