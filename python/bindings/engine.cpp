// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/base/error.h"
#include "lockstep/ds_config/keys/described_values.h"
#include "lockstep/engine/checkpoint/checkpoint_options.h"
#include "lockstep/engine/engine_core.h"
#include "lockstep/engine/profiler/engine_reporter.h"
#include "lockstep/engine/profiler/module_tree.h"
#include "lockstep/engine/setup/config_document.h"
#include "lockstep/engine/setup/engine_setup.h"
#include "lockstep/engine/state/engine_context.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/sharding.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gathered.h"
#include "python/bindings/json.h"
#include "python/bindings/models.h"
#include "python/bindings/optimizers.h"
#include "python/bindings/pipeline.h"

namespace lockstep::python {
namespace {

/// An Engine whose model is Python's.
class PythonEngine : public EngineCore {
 public:
  explicit PythonEngine(const std::shared_ptr<EngineContext>& context)
      : EngineCore(context), context_(context) {}

  /// Begins a scope around the model's forward, with autocast, until end_forward().
  void begin_forward() { forwards_.push_back(std::make_unique<RunningForward>(*this)); }
  void end_forward() { forwards_.pop_back(); }

  /// Sets the counters, and the dynamic loss scale unless null, for a state that another program
  /// has saved.
  void set_progress(
      int64_t global_steps,
      int64_t global_samples,
      int64_t skipped_steps,
      const std::optional<nlohmann::json>& loss_scale) {
    const std::shared_ptr<EngineContext> context = live_context();
    context->counter.set_counts(
        {.micro_steps = global_steps * gradient_accumulation_steps(),
         .global_steps = global_steps,
         .global_samples = global_samples,
         .skipped_steps = skipped_steps});
    context->optimizer.set_steps(global_steps - skipped_steps);
    if (loss_scale && context->dynamic_loss_scale) {
      nlohmann::json state = context->dynamic_loss_scale->state();
      state.update(*loss_scale);
      context->dynamic_loss_scale->load_state(state);
    }
    if (context->has_scheduler()) {
      nlohmann::json state = context->scheduler.state();
      state["steps"] = global_steps - skipped_steps;
      state["counted"] = global_steps - skipped_steps;
      context->scheduler.check_state(state, "set_progress")();
    }
  }
  /// Frees the parameters that stage 3 has unsharded. Collective.
  void empty_partition_cache() {
    zero::Sharding* const sharding =
        internal::AcceleratorInternals::objects(accelerator()).sharding.get();
    if (sharding != nullptr && sharding->coordinator() != nullptr) {
      sharding->coordinator()->release_all();
    }
  }
  /// Writes values to the file's monitors, over samples.
  void log_values(const tracking::Values& values, int64_t samples) {
    live_context()->reporter->log(values, samples);
  }
  /// Returns the steps of the file's schedule; none without one.
  std::optional<int64_t> schedule_steps() const {
    const std::shared_ptr<EngineContext> context = live_context();
    return context->has_scheduler() ? std::optional(context->scheduler.steps()) : std::nullopt;
  }

 private:
  std::shared_ptr<EngineContext> live_context() const {
    config();  // Throws ConfigError after destroy().
    return context_.lock();
  }

  struct RunningForward {
    explicit RunningForward(PythonEngine& engine)
        : forward(engine), cast(engine.accelerator().autocast()) {}
    Forward forward;
    decltype(std::declval<Accelerator&>().autocast()) cast;
  };

  std::vector<std::unique_ptr<RunningForward>> forwards_;  ///< The innermost is the last.
  std::weak_ptr<EngineContext> context_;
};

using Optimizers = std::shared_ptr<torch::optim::Optimizer>;

struct Initialized {
  std::shared_ptr<PythonEngine> engine;
  Optimizers inner;  ///< Null without an optimizer.
  std::optional<Optimizer> optimizer;
  std::vector<std::vector<at::Tensor>> groups;  ///< The model's parameters in each parameter group.
};

/// Reads a ds_config.json, by its path or else its text.
config::Document document_of(const std::string& path, const std::string& text) {
  InitializeOptions options;
  options.config = path;
  options.config_json = text;
  return read_config_document(options);
}

/// Returns a value of a file, with the keys of a dict in the file's order.
py::object content_of(const config::Node& node) {
  switch (node.kind) {
    case config::Node::Kind::kNull:
      return py::none();
    case config::Node::Kind::kScalar:
      return node.quoted ? py::object(py::str(node.text))
                         : py::module_::import("json").attr("loads")(node.text);
    case config::Node::Kind::kList: {
      py::list list;
      for (const config::Node& item : node.items) {
        list.append(content_of(item));
      }
      return list;
    }
    case config::Node::Kind::kMap: {
      py::dict dict;
      for (const config::Entry& entry : node.entries) {
        dict[py::str(entry.key)] = content_of(entry.value);
      }
      return dict;
    }
  }
  return py::none();
}

/// Returns {path: value} for all values of a configuration.
py::dict values_of(const ds_config::DsConfig& config) {
  py::dict values;
  for (const ds_config::DescribedValue& each : ds_config::described_values(config)) {
    values[py::str(each.path)] = from_json(each.value);
  }
  return values;
}

OffloadStatesOptions offload_states_options(
    const std::optional<std::vector<std::string>>& include,
    const std::string& device,
    bool pin_memory,
    bool non_blocking) {
  static const std::map<std::string, OffloadStateType> types = {
      {"optim_states", OffloadStateType::kOptimStates},
      {"hp_params", OffloadStateType::kHpParams},
      {"lp_params", OffloadStateType::kLpParams},
      {"lp_grads", OffloadStateType::kLpGrads},
      {"contiguous_grad_buffer", OffloadStateType::kContiguousGradBuffer}};
  static const std::map<std::string, OffloadDevice> devices = {
      {"none", OffloadDevice::kNone}, {"cpu", OffloadDevice::kCpu}, {"nvme", OffloadDevice::kNvme}};
  OffloadStatesOptions options{.pin_memory = pin_memory, .non_blocking = non_blocking};
  if (include) {
    options.include.emplace();
    for (const std::string& name : *include) {
      const auto found = types.find(name);
      if (found == types.end()) {
        throw ConfigError(
            "offload_states",
            fmt::format(
                "unknown state '{}'; expected optim_states, hp_params, lp_params, lp_grads or "
                "contiguous_grad_buffer",
                name));
      }
      options.include->insert(found->second);
    }
  }
  const auto found = devices.find(device);
  if (found == devices.end()) {
    throw ConfigError(
        "offload_states", fmt::format("unknown device '{}'; expected cpu or none", device));
  }
  options.device = found->second;
  return options;
}

/// Returns the mesh of an engine without tp, which the file has. Python divides sequences itself:
/// to the engine their ranks are data parallel.
MeshShape mesh_for(int ep, int pp) {
  if (ep * pp > 1) {
    return {.pp = pp, .ep = ep};
  }
  MeshShape mesh = mesh_from_environment(Environment::process());
  if (mesh.cp * mesh.sp > 1) {
    mesh.dp_replicate = mesh.dp_shard = 0;
  }
  mesh.cp = mesh.sp = mesh.tp = 1;
  return mesh;
}

Initialized initialize(
    const py::object& model,
    const std::string& config_path,
    const std::string& config_json,
    Optimizers optimizer,
    const std::vector<at::Tensor>& model_parameters,
    const WorldSpec& world,
    const Group& group,
    const std::vector<std::shared_ptr<internal::ZeroInit>>& zero_inits) {
  internal::GivenModel given = given_model(model);
  InitializeOptions options;
  // As with DeepSpeed, the layers have the number of processes that divide them or their experts.
  options.accelerator.mesh = mesh_for(expert_ranks_of(model), pipeline_stages_of(model));
  if (given.tensor_parallel) {
    options.accelerator.tensor_parallel = *std::exchange(given.tensor_parallel, std::nullopt);
  }
  std::optional<py::gil_scoped_release> no_gil(std::in_place);
  options.config = config_path;
  options.config_json = config_json;
  options.optimizer = std::move(optimizer);
  options.model_parameters = model_parameters;
  options.connected = Connected{world, group};
  EngineSetup setup(std::move(options), given.parameters(), given.buffers(), given.classes());
  no_gil.reset();
  give_expert_group(model, setup.accelerator().mesh().experts);
  given.pipeline = connect_pipeline(model, setup.accelerator().mesh().pipeline);
  no_gil.emplace();
  if (given.pipeline) {
    setup.set_pipeline();
  }
  Initialized result;
  internal::GivenObjects objects;
  objects.models.push_back(given);
  if (auto plain = setup.optimizer_for(given.parameters())) {
    result.inner = plain;
    for (const auto& parameters : plain->param_groups()) {
      result.groups.push_back(parameters.params());
    }
    objects.optimizers.push_back(given_optimizer_of(plain));
  }
  std::vector<Optimizer> prepared =
      internal::AcceleratorInternals::prepare(setup.accelerator(), std::move(objects));
  if (!prepared.empty()) {
    result.optimizer = prepared.front();
  }
  transfer_zero_init(setup.accelerator(), zero_inits, given);
  result.engine = std::make_shared<PythonEngine>(setup.finish(
      result.optimizer.value_or(Optimizer()),
      [given] { return tensors_of(given.parameters()); },
      [given] { return ModuleTree(given.classes(), given.parameters()); }));
  return result;
}

std::optional<CheckpointTag> tag_of(const std::optional<std::string>& tag) {
  return tag ? std::optional<CheckpointTag>(*tag) : std::nullopt;
}

void bind_configuration(py::class_<PythonEngine, std::shared_ptr<PythonEngine>>& engine) {
  engine
      .def_property_readonly(
          "config", [](const PythonEngine& self) { return values_of(self.config()); })
      .def(
          "set_progress",
          [](PythonEngine& self,
             int64_t global_steps,
             int64_t global_samples,
             int64_t skipped_steps,
             const py::object& loss_scale) {
            self.set_progress(
                global_steps,
                global_samples,
                skipped_steps,
                loss_scale.is_none() ? std::nullopt
                                     : std::optional(to_json(loss_scale, "set_progress")));
          })
      .def_property_readonly("schedule_steps", &PythonEngine::schedule_steps)
      .def(
          "offload_states",
          [](PythonEngine& self,
             const std::optional<std::vector<std::string>>& include,
             const std::string& device,
             bool pin_memory,
             bool non_blocking) {
            self.offload_states(offload_states_options(include, device, pin_memory, non_blocking));
          },
          NoGil())
      .def("reload_states", &PythonEngine::reload_states, NoGil());
}

void bind_counts(py::class_<PythonEngine, std::shared_ptr<PythonEngine>>& engine) {
  engine.def_property_readonly("train_batch_size", &EngineCore::train_batch_size)
      .def_property_readonly(
          "train_micro_batch_size_per_gpu", &EngineCore::train_micro_batch_size_per_gpu)
      .def_property_readonly(
          "gradient_accumulation_steps", &EngineCore::gradient_accumulation_steps)
      .def("set_train_batch_size", &EngineCore::set_train_batch_size)
      .def("set_train_micro_batch_size", &EngineCore::set_train_micro_batch_size)
      .def_property_readonly("zero_optimization_stage", &EngineCore::zero_optimization_stage)
      .def_property_readonly("global_steps", &EngineCore::global_steps)
      .def_property_readonly("global_samples", &EngineCore::global_samples)
      .def_property_readonly("skipped_steps", &EngineCore::skipped_steps)
      .def_property_readonly("micro_steps", &EngineCore::micro_steps)
      .def("was_step_applied", &EngineCore::was_step_applied)
      .def("get_global_grad_norm", &EngineCore::get_global_grad_norm)
      .def("get_lr", &EngineCore::get_lr)
      .def("get_mom", &EngineCore::get_mom)
      .def("loss_scale", &EngineCore::loss_scale)
      .def("is_gradient_accumulation_boundary", &EngineCore::is_gradient_accumulation_boundary)
      .def("set_gradient_accumulation_boundary", &EngineCore::set_gradient_accumulation_boundary)
      .def_property_readonly("mixed_precision", [](const PythonEngine& self) {
        return name_of(self.accelerator().mixed_precision());
      });
}

void bind_engine_checkpoints(py::class_<PythonEngine, std::shared_ptr<PythonEngine>>& engine) {
  engine
      .def(
          "save_checkpoint",
          [](PythonEngine& self,
             const std::string& save_dir,
             const std::optional<std::string>& tag,
             py::handle client_state,
             bool save_latest,
             bool exclude_frozen_parameters) {
            SaveCheckpointOptions options;
            options.client_state = to_json(client_state, "save_checkpoint");
            options.save_latest = save_latest;
            options.exclude_frozen_parameters = exclude_frozen_parameters;
            const py::gil_scoped_release no_gil;
            return self.save_checkpoint(save_dir, tag_of(tag), options).string();
          })
      .def(
          "load_checkpoint",
          [](PythonEngine& self,
             const std::string& load_dir,
             const std::optional<std::string>& tag,
             bool load_module_strict,
             bool load_optimizer_states,
             bool load_lr_scheduler_states,
             bool load_module_only) {
            LoadedCheckpoint loaded;
            {
              const py::gil_scoped_release no_gil;
              loaded = self.load_checkpoint(
                  load_dir,
                  tag_of(tag),
                  {.load_module_strict = load_module_strict,
                   .load_optimizer_states = load_optimizer_states,
                   .load_lr_scheduler_states = load_lr_scheduler_states,
                   .load_module_only = load_module_only});
            }
            return std::pair(loaded.path.string(), from_json(loaded.client_state));
          })
      .def(
          "save_16bit_model",
          [](PythonEngine& self,
             const py::object& module,
             const std::string& folder,
             const std::string& file_name,
             bool exclude_frozen_parameters) {
            const NamedTensors tensors = tensors_of_python(module, !exclude_frozen_parameters);
            const py::gil_scoped_release no_gil;
            internal::AcceleratorInternals::save_model_tensors(
                self.accelerator(),
                tensors,
                folder,
                save_16bit_options(self.config(), file_name, std::nullopt));
          });
}

}  // namespace

void bind_engine(py::module_& module) {
  const py::class_<GradientScope, std::shared_ptr<GradientScope>> scope(module, "GradientScope");
  py::class_<PythonEngine, std::shared_ptr<PythonEngine>> engine(
      module, "Engine", DestroyedWithoutGil());
  engine.def("begin_forward", &PythonEngine::begin_forward)
      .def("end_forward", &PythonEngine::end_forward)
      .def(
          "backward",
          [](PythonEngine& self, const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) {
            return self.backward(
                loss, {.retain_graph = retain_graph, .scale_wrt_gas = scale_wrt_gas});
          },
          NoGil())
      .def("scale", &PythonEngine::scale, NoGil())
      .def(
          "step",
          [](PythonEngine& self, std::optional<double> metric) { self.step({.metric = metric}); },
          py::arg("metric") = std::nullopt,
          NoGil())
      .def(
          "begin_no_sync",
          [](PythonEngine& self) { return std::make_shared<GradientScope>(self.no_sync()); })
      .def("begin_coalescing", &PythonEngine::begin_coalescing)
      .def_property_readonly(
          "accelerator",
          [](PythonEngine& self) -> Accelerator& { return self.accelerator(); },
          py::return_value_policy::reference_internal)
      .def("safe_get_full_fp32_param", &PythonEngine::safe_get_full_fp32_param, NoGil())
      .def("safe_get_full_grad", &PythonEngine::safe_get_full_grad, NoGil())
      .def("safe_get_full_optimizer_state", &PythonEngine::safe_get_full_optimizer_state, NoGil())
      .def("safe_set_full_fp32_param", &PythonEngine::safe_set_full_fp32_param, NoGil())
      .def("safe_set_full_grad", &PythonEngine::safe_set_full_grad, NoGil())
      .def("safe_set_full_optimizer_state", &PythonEngine::safe_set_full_optimizer_state, NoGil())
      .def("empty_partition_cache", &PythonEngine::empty_partition_cache, NoGil())
      .def("log_values", &PythonEngine::log_values, NoGil())
      .def("log_summary", &PythonEngine::log_summary, py::arg("show_straggler") = false, NoGil())
      .def("destroy", &PythonEngine::destroy, NoGil());
  bind_configuration(engine);
  bind_counts(engine);
  bind_engine_checkpoints(engine);
  py::class_<Initialized>(module, "Initialized", DestroyedWithoutGil())
      .def_readonly("engine", &Initialized::engine)
      .def_readonly("inner", &Initialized::inner)
      .def_readonly("optimizer", &Initialized::optimizer)
      .def_readonly("groups", &Initialized::groups);
  bind_gathered(module);
  module.def("initialize", &initialize);
  // Returns {path: value} of a ds_config.json, by its path or text, for a number of ranks.
  module.def("ds_config_values", [](const std::string& path, const std::string& text, int ranks) {
    return values_of(ds_config::resolve_ds_config(document_of(path, text), ranks));
  });
  // Returns what a ds_config.json has, before defaults and derived values.
  module.def("ds_config_content", [](const std::string& path, const std::string& text) {
    return content_of(document_of(path, text).root);
  });
  // Returns whether a text is a ds_config.json or its base64 form, and not a path.
  module.def("is_ds_config_text", [](const std::string& text) {
    const std::string plain = plain_config_text(text);
    const size_t begin = plain.find_first_not_of(" \t\r\n");
    return begin != std::string::npos && plain[begin] == '{';
  });
}

}  // namespace lockstep::python
