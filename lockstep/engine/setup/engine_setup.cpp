// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/engine_setup.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "lockstep/accelerator/zero_setup/dtypes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/ds_config/keys/described_values.h"
#include "lockstep/ds_config/value_text.h"
#include "lockstep/engine/setup/cast_model.h"
#include "lockstep/engine/setup/config_document.h"
#include "lockstep/engine/setup/make_optimizer.h"
#include "lockstep/engine/setup/model_parallel.h"
#include "lockstep/engine/state/engine_context.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep {
namespace {

LogLevel log_level_of(const std::string& word) {
  return word == "debug"     ? LogLevel::kDebug
         : word == "warning" ? LogLevel::kWarning
         : word == "error"   ? LogLevel::kError
                             : LogLevel::kInfo;
}

std::string dumped(const ds_config::DsConfig& config) {
  std::string text = "the engine's configuration:";
  for (const ds_config::DescribedValue& each : ds_config::described_values(config)) {
    text += fmt::format("\n  {} = {} ({})", each.path, ds_config::text_of(each.value), each.origin);
  }
  return text;
}

/// Returns `tensors` with their names in the model; the names of other tensors are empty.
NamedTensors with_names(const std::vector<at::Tensor>& tensors, const NamedTensors& model) {
  NamedTensors named;
  for (const at::Tensor& tensor : tensors) {
    const auto found = std::find_if(model.begin(), model.end(), [&](const NamedTensor& item) {
      return item.tensor.is_same(tensor);
    });
    named.push_back({found == model.end() ? "" : found->name, tensor});
  }
  return named;
}

NamedTensors only_trained(NamedTensors parameters) {
  std::erase_if(parameters, [](const NamedTensor& item) { return !item.tensor.requires_grad(); });
  return parameters;
}

/// Returns null if the file sets no option.
std::shared_ptr<ActivationCheckpointing> make_activation_checkpointing(
    const ds_config::ActivationCheckpointingSection& section) {
  const ActivationCheckpointingOptions options{
      .cpu_checkpointing = section.cpu_checkpointing.value,
      .contiguous_memory_optimization = section.contiguous_memory_optimization.value,
      .number_checkpoints = section.number_checkpoints.value,
      .synchronize_checkpoint_boundary = section.synchronize_checkpoint_boundary.value,
      .profile = section.profile.value};
  const bool any = options.cpu_checkpointing || options.contiguous_memory_optimization ||
                   options.synchronize_checkpoint_boundary || options.profile;
  return any ? std::make_shared<ActivationCheckpointing>(options) : nullptr;
}

/// Returns null unless comms_logger is enabled.
std::shared_ptr<CommsLog> make_comms_log(const ds_config::CommsLoggerSection& section) {
  if (!section.enabled.value) {
    return nullptr;
  }
  CommsLogOptions options{.verbose = section.verbose.value, .with_shapes = section.debug.value};
  if (!section.prof_all.value) {
    options.operations = {section.prof_ops.value.begin(), section.prof_ops.value.end()};
  }
  return std::make_shared<CommsLog>(std::move(options));
}

/// Returns the file's values, and sets the mesh. `ranks`: those of the job; receives those with
/// samples of their own. The Accelerator refuses a mesh that the job cannot have later.
ds_config::DsConfig resolve_file(
    const InitializeOptions& given, AcceleratorOptions& options, int& ranks) {
  const config::Document document = read_config_document(given);
  const ds_config::Reading first = ds_config::read_ds_config(document, std::nullopt);
  int64_t of_sample = 1;
  if (first.errors.empty()) {  // Else resolve_ds_config throws them.
    options.mesh = mesh_of_file(first.config, options);
    ranks = std::max(1, ranks / options.mesh->without_data().ranks());
    of_sample = first.config.ranks_of_sample();
  }
  return ds_config::resolve_ds_config(document, ranks * of_sample);
}

}  // namespace

EngineSetup::EngineSetup(
    InitializeOptions options,
    const NamedTensors& parameters,
    const NamedTensors& buffers,
    const internal::NamedClasses& modules)
    : given_(std::move(options)) {
  // Before anything collective, so that no rank waits for one with an invalid file.
  int ranks = given_.connected ? given_.connected->world.size : world_to_connect().size;
  ds_config::DsConfig resolved = resolve_file(given_, given_.accelerator, ranks);
  context_ = std::make_shared<EngineContext>(std::move(resolved), ranks);
  const ds_config::DsConfig& config = context_->config;
  set_tensor_plan(config.tensor_parallel, parameters, modules, given_.accelerator);
  context_->activation_checkpointing =
      make_activation_checkpointing(config.activation_checkpointing);
  check_no_option_of_ds_config(given_.accelerator);
  if (const auto& classes = config.torch_autocast.lower_precision_safe_modules; classes.value) {
    internal::check_lower_precision(
        *classes.value, parameters, modules, classes.origin.text, kSafeModulesKey);
  }
  cast_model(parameters, buffers, model_dtypes(config.data_types));
  make_optimizer_of_program(parameters);
  freeze_without_optimizer(parameters);
  model_ = {
      .has_optimizer = given_.optimizer || config.optimizer,
      .has_16_bit_parameters = (config.fp16.enabled.value || config.bf16.enabled.value) &&
                               any_trained_in_16_bits(parameters)};
  create_accelerator();
  if (config.log_level.value) {
    LogOptions log = LogOptions::from_environment();
    log.level = log_level_of(*config.log_level.value);
    set_log_options(log);
  }
  context_->reporter = std::make_unique<EngineReporter>(config, accelerator().is_main_process());
  if (config.dump_state.value && accelerator().is_main_process()) {
    log_info(dumped(config));
  }
}

void EngineSetup::create_accelerator() {
  EngineContext& context = *context_;
  context.dynamic_loss_scale = make_dynamic_loss_scale(context.config);
  AcceleratorOptions options =
      accelerator_options(context.config, given_.accelerator, model_, context.dynamic_loss_scale);
  context.saves_on_each_host = options.project_config.save_on_each_node;
  if (!given_.connected) {
    given_.connected = connected_once(given_.accelerator.connect);
  }
  Group group = given_.connected->group;
  context.comms_log = make_comms_log(context.config.comms_logger);
  if (context.comms_log) {
    group = logged(group, context.comms_log);
  }
  context.accelerator =
      std::make_unique<Accelerator>(std::move(options), given_.connected->world, std::move(group));
}

void EngineSetup::set_pipeline() const {
  context_->counter.set_steps_all_at_once();
}

/// Freezes the parameters of a model for inference: in stage 3, without an optimizer.
void EngineSetup::freeze_without_optimizer(const NamedTensors& parameters) const {
  if (given_.optimizer || context_->config.optimizer || context_->stage() != 3) {
    return;
  }
  for (const NamedTensor& item : parameters) {
    item.tensor.requires_grad_(false);
  }
}

/// Calls make_optimizer, if it is given, and stores its result as the given optimizer.
void EngineSetup::make_optimizer_of_program(const NamedTensors& parameters) {
  const auto refuse = [](const char* name, const char* other) {
    throw ConfigError(
        "initialize", fmt::format("got both `{}` and `{}`; give only one", name, other));
  };
  if (given_.lr_scheduler && given_.make_lr_scheduler) {
    refuse("lr_scheduler", "make_lr_scheduler");
  }
  if (!given_.make_optimizer) {
    return;
  }
  if (given_.optimizer) {
    refuse("optimizer", "make_optimizer");
  }
  const std::vector<at::Tensor> trained = given_.model_parameters.empty()
                                              ? tensors_of(only_trained(parameters))
                                              : given_.model_parameters;
  given_.optimizer = std::exchange(given_.make_optimizer, nullptr)(trained);
  if (!given_.optimizer) {
    throw ConfigError("initialize", "make_optimizer returned no optimizer; let it return one");
  }
}

std::shared_ptr<torch::optim::Optimizer> EngineSetup::optimizer_for(NamedTensors parameters) const {
  const ds_config::DsConfig& config = context_->config;
  if (given_.optimizer) {
    if (model_.shards_masters_in_stage_0(config) &&
        dynamic_cast<optim::FlatOptimizer*>(given_.optimizer.get()) == nullptr) {
      throw ConfigError(
          "initialize",
          "this optimizer cannot update 16-bit parameters, whose float32 masters are sharded even "
          "in stage 0; use one of lockstep::optim, or keep the parameters in float32");
    }
    return given_.optimizer;
  }
  if (!config.optimizer) {
    return nullptr;
  }
  if (!given_.model_parameters.empty()) {
    parameters = with_names(given_.model_parameters, parameters);
  }
  return make_optimizer(*config.optimizer, only_trained(std::move(parameters)), given_.mup_shapes);
}

std::shared_ptr<EngineContext> EngineSetup::finish(
    Optimizer optimizer,
    std::function<std::vector<at::Tensor>()> parameters,
    std::function<ModuleTree()> modules) {
  context_->optimizer = std::move(optimizer);
  context_->parameters = std::move(parameters);
  context_->modules = std::move(modules);
  prepare_scheduler();
  return context_;
}

Accelerator& EngineSetup::accelerator() const {
  return *context_->accelerator;
}

Scheduler EngineSetup::scheduler() const {
  return context_->scheduler;
}

void EngineSetup::prepare_scheduler() {
  EngineContext& context = *context_;
  const auto& section = context.config.scheduler;
  if (!given_.lr_scheduler && !given_.make_lr_scheduler && !section) {
    return;
  }
  if (!context.has_optimizer()) {
    throw ConfigError(
        "initialize",
        "got a scheduler without an optimizer; add an optimizer to the file or to the options");
  }
  if (given_.make_lr_scheduler) {
    given_.lr_scheduler = given_.make_lr_scheduler(context.optimizer.inner());
  }
  if (!given_.lr_scheduler) {
    context.scheduler = accelerator().prepare(*section->schedule);
    return;
  }
  context.scheduler_needs_metric =
      std::holds_alternative<schedule::ReduceOnPlateauOptions>(*given_.lr_scheduler);
  context.scheduler = std::visit(
      [&](const auto& schedule) { return accelerator().prepare(schedule); }, *given_.lr_scheduler);
}

}  // namespace lockstep
