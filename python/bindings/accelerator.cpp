// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/accelerator.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/local_sgd/local_sgd.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/prepare/divided_state.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/values/nested_operations.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/comm/byte_collectives.h"
#include "python/bindings/json.h"
#include "python/bindings/loaders.h"
#include "python/bindings/models.h"
#include "python/bindings/optimizers.h"
#include "python/bindings/options.h"
#include "python/bindings/pipeline.h"

namespace lockstep::python {
namespace {

using Internals = internal::AcceleratorInternals;

/// A scope that Python ends with `end()`.
class Scope {
 public:
  template <typename T>
  explicit Scope(T scope) : scope_(std::make_shared<T>(std::move(scope))) {}
  void end() { scope_.reset(); }

 private:
  std::shared_ptr<void> scope_;
};

std::vector<const void*> ids_of(const std::vector<py::object>& models) {
  std::vector<const void*> ids;
  for (const py::object& model : models) {
    ids.push_back(id_of(model));
  }
  return ids;
}

/// Calls a Python function of no arguments, without the GIL.
std::function<void()> body_of(py::object body) {
  return [held = Held<>(std::move(body))] {
    const py::gil_scoped_acquire gil;
    held.get()();
  };
}

void bind_prepare(py::class_<Accelerator>& accelerator) {
  accelerator
      .def(
          "prepare",
          [](Accelerator& self,
             const std::vector<py::object>& models,
             const std::vector<std::shared_ptr<PythonLoader>>& loaders,
             const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers) {
            internal::GivenObjects objects;
            for (const py::object& model : models) {
              give_expert_group(model, self.mesh().experts);
              internal::GivenModel& given = objects.models.emplace_back(given_model(model));
              if (Internals::objects(self).find_model(given.id) == nullptr) {
                given.pipeline = connect_pipeline(model, self.mesh().pipeline);
              }
            }
            for (const auto& loader : loaders) {
              objects.loaders.push_back(loader->core());
            }
            for (const auto& optimizer : optimizers) {
              objects.optimizers.push_back(given_optimizer_of(optimizer));
            }
            const py::gil_scoped_release no_gil;
            return Internals::prepare(self, std::move(objects));
          })
      .def(
          "free_memory",
          [](Accelerator& self) {
            const py::gil_scoped_release no_gil;
            self.free_memory();
          })
      .def(
          "begin_zero_init",
          [](Accelerator& self) {
            auto scope = Internals::begin_zero_init(self);
            return scope ? std::optional(Scope(std::move(scope))) : std::nullopt;
          })
      .def(
          "finish_zero_init",
          [](Accelerator& self, const py::object& module) {
            const NamedTensors tensors = tensors_of_python(module);
            const py::gil_scoped_release no_gil;
            Internals::finish_zero_init(self, tensors);
          })
      .def(
          "with_gathered_parameters",
          [](Accelerator& self,
             const std::vector<at::Tensor>& parameters,
             py::object body,
             std::optional<int> modifier_rank) {
            const auto call = body_of(std::move(body));
            const py::gil_scoped_release no_gil;
            self.with_gathered_parameters(parameters, call, modifier_rank);
          },
          py::arg("parameters"),
          py::arg("body"),
          py::arg("modifier_rank") = std::nullopt)
      .def(
          "offload_states", [](Accelerator& self) { self.offload_states(); }, NoGil())
      .def("reload_states", &Accelerator::reload_states, py::arg("non_blocking") = false, NoGil())
      .def_property_readonly(
          "shards_parameters",
          [](Accelerator& self) { return Internals::objects(self).shards_parameters(); })
      .def_property_readonly("data_group", [](Accelerator& self) { return self.mesh().data; })
      .def_property_readonly(
          "divides_layers", [](Accelerator& self) { return self.mesh().tensor.size() > 1; })
      .def_property_readonly(
          "pipeline_group", [](Accelerator& self) { return self.mesh().pipeline; })
      .def_property_readonly(
          "divides_experts", [](Accelerator& self) { return self.mesh().experts.size() > 1; })
      .def_property_readonly(
          "divides_sequences", [](Accelerator& self) { return self.mesh().sequence.size() > 1; })
      .def(
          "full_tensors",
          [](Accelerator& self, const py::object& module) {
            const NamedTensors own = tensors_of_python(module);
            NamedTensors full;
            {
              const py::gil_scoped_release no_gil;
              full = internal::full_model_tensors(Internals::objects(self), own, /*keeps=*/true);
            }
            std::vector<std::pair<std::string, at::Tensor>> named;
            for (NamedTensor& item : full) {
              named.emplace_back(std::move(item.name), std::move(item.tensor));
            }
            return named;
          })
      .def_property_readonly("shards_updates", [](Accelerator& self) {
        return Internals::context(self).options.zero.has_value();
      });
}

void bind_step(py::class_<Accelerator>& accelerator) {
  accelerator
      .def(
          "accumulate",
          [](Accelerator& self, const std::vector<py::object>& models) {
            const auto ids = ids_of(models);
            const py::gil_scoped_release no_gil;
            return Scope(Internals::begin_micro_step(self, ids));
          })
      .def(
          "no_sync",
          [](Accelerator& self, const std::vector<py::object>& models) {
            return Scope(Internals::begin_no_sync(self, ids_of(models)));
          })
      .def(
          "trigger_sync_in_backward",
          [](Accelerator& self, const std::vector<py::object>& models) {
            Internals::trigger_sync(self, ids_of(models));
          })
      .def_property_readonly("sync_gradients", &Accelerator::sync_gradients)
      .def_property(
          "gradient_accumulation_steps",
          &Accelerator::gradient_accumulation_steps,
          &Accelerator::set_gradient_accumulation_steps)
      .def(
          "backward",
          [](Accelerator& self, const at::Tensor& loss, bool retain_graph) {
            self.backward(loss, {.retain_graph = retain_graph});
          },
          py::arg("loss"),
          py::arg("retain_graph") = false,
          NoGil())
      .def(
          "backward_sum",
          [](Accelerator& self, const at::Tensor& loss_sum, double count) {
            self.backward(loss_sum, count);
          },
          NoGil())
      .def("scale_loss", &Accelerator::scale_loss, NoGil())
      .def(
          "autocast",
          [](Accelerator& self, bool enabled, bool cache_enabled) {
            const AutocastOptions options{.enabled = enabled, .cache_enabled = cache_enabled};
            return Scope(std::shared_ptr<Autocast>(new Autocast(self.autocast(options))));
          })
      .def_property_readonly(
          "mixed_precision",
          [](const Accelerator& self) { return name_of(self.mixed_precision()); })
      .def_property_readonly(
          "loss_scale",
          [](Accelerator& self) {
            const GradScaler* const scaler = self.scaler();
            return scaler != nullptr ? std::optional(scaler->get_scale()) : std::nullopt;
          })
      .def_property_readonly("optimizer_step_was_skipped", &Accelerator::optimizer_step_was_skipped)
      .def(
          "unscale_gradients",
          [](Accelerator& self, const std::optional<Optimizer>& optimizer) {
            if (optimizer) {
              self.unscale_gradients(*optimizer);
            } else {
              self.unscale_gradients();
            }
          },
          py::arg("optimizer") = std::nullopt,
          NoGil())
      .def(
          "clip_grad_norm_",
          &Accelerator::clip_grad_norm_,
          py::arg("parameters"),
          py::arg("max_norm"),
          py::arg("norm_type") = 2,
          NoGil())
      .def("clip_grad_value_", &Accelerator::clip_grad_value_, NoGil())
      .def("average_gradients", &Accelerator::average_gradients, NoGil())
      .def("parameters_without_gradient", &Accelerator::parameters_without_gradient)
      .def(
          "begin_join",
          [](Accelerator& self, std::optional<bool> even_batches) {
            return Internals::begin_join(self, {.even_batches = even_batches});
          },
          NoGil(),
          py::keep_alive<0, 1>())
      // The batch of the innermost loop: (is_last, rows of all ranks, new rows of all ranks).
      .def_property_readonly("current_batch", [](Accelerator& self) {
        using Batch = std::tuple<bool, std::vector<int64_t>, std::vector<int64_t>>;
        const data::BatchInfo* const batch = Internals::active_loaders(self).current();
        return batch != nullptr
                   ? std::optional<Batch>({batch->is_last, batch->rows_per_rank, batch->valid_rows})
                   : std::nullopt;
      });
}

/// Values of one level: Python flattens nested ones.
void bind_values(py::class_<Accelerator>& accelerator) {
  using Tensors = std::vector<at::Tensor>;
  accelerator
      .def(
          "gather", [](Accelerator& self, const Tensors& all) { return self.gather(all); }, NoGil())
      .def(
          "gather_for_metrics",
          [](Accelerator& self, const Tensors& all) { return self.gather_for_metrics(all); },
          NoGil())
      .def(
          "reduce",
          [](Accelerator& self, const Tensors& all, ReduceOp op) { return self.reduce(all, op); },
          NoGil())
      .def(
          "pad_across_processes",
          [](Accelerator& self, const Tensors& all, int64_t dim, double pad_index, bool pad_first) {
            return self.pad_across_processes(all, dim, pad_index, pad_first);
          },
          NoGil())
      .def(
          "broadcast",
          [](Accelerator& self, const Tensors& all, int from_process) {
            return self.broadcast(all, from_process);
          },
          NoGil())
      .def("set_trigger", &Accelerator::set_trigger)
      .def("check_trigger", &Accelerator::check_trigger, NoGil())
      .def("wait_for_everyone", &Accelerator::wait_for_everyone, NoGil());
}

py::bytes bytes_of(const std::string& text) {
  return {text.data(), text.size()};
}

void bind_byte_collectives(py::module_& module) {
  module.def("all_gather_bytes", [](Group& group, const py::bytes& mine) {
    const std::string text = mine;
    std::vector<std::string> all;
    {
      const py::gil_scoped_release no_gil;
      all = all_gather_bytes(group, text);
    }
    py::list list;
    for (const std::string& one : all) {
      list.append(bytes_of(one));
    }
    return list;
  });
  module.def("broadcast_bytes", [](Group& group, const py::bytes& mine, int root) {
    const std::string text = mine;
    std::string received;
    {
      const py::gil_scoped_release no_gil;
      received = broadcast_bytes(group, text, root);
    }
    return bytes_of(received);
  });
}

/// The state that a hook of save_state sees.
void bind_saved_states(py::module_& module) {
  py::class_<StateBeingSaved>(module, "StateBeingSaved")
      .def_readonly("models", &StateBeingSaved::models)
      .def(
          "exclude_model",
          [](StateBeingSaved& state, size_t model) { state.excluded_models.insert(model); })
      .def(
          "add_json",
          [](StateBeingSaved& state, const std::string& name, py::handle value) {
            state.contents.add_json(name, to_json(value, "save_state"));
          })
      .def("add_tensors", [](StateBeingSaved& state, const std::string& name, const py::dict& all) {
        NamedTensors tensors;
        for (const auto& [key, tensor] : all) {
          tensors.push_back({key.cast<std::string>(), tensor.cast<at::Tensor>()});
        }
        state.contents.add_tensors(name, std::move(tensors));
      });
  py::class_<StateBeingLoaded>(module, "StateBeingLoaded")
      .def_readonly("models", &StateBeingLoaded::models)
      .def_property_readonly(
          "folder", [](const StateBeingLoaded& state) { return state.checkpoint.path().string(); })
      .def(
          "exclude_model",
          [](StateBeingLoaded& state, size_t model) { state.excluded_models.insert(model); })
      .def(
          "has_file",
          [](const StateBeingLoaded& state, const std::string& name) {
            return state.checkpoint.has(name);
          })
      .def(
          "json",
          [](const StateBeingLoaded& state, const std::string& name) {
            return from_json(state.checkpoint.json(name));
          })
      .def("tensors", [](const StateBeingLoaded& state, const std::string& name) {
        py::dict all;
        for (const NamedTensor& item : state.checkpoint.tensors(name)) {
          all[py::str(item.name)] = item.tensor.clone();
        }
        return all;
      });
}

/// Calls Python for all ranks, to which a failure's message is reported. That of a program's
/// exception has its traceback. The caller has the GIL.
template <typename... Arguments>
void call_hook(const Held<>& hook, Arguments&&... arguments) {
  try {
    hook.get()(std::forward<Arguments>(arguments)...);
  } catch (const py::error_already_set& error) {
    if (!error.matches(py::module_::import("lockstep._core").attr("Error"))) {
      throw;
    }
    throw std::runtime_error(py::str(error.value()).cast<std::string>());
  }
}

/// Returns a hook that calls Python.
template <typename State>
std::function<void(State&)> hook_of(py::object hook) {
  return [held = Held<>(std::move(hook))](State& state) {
    const py::gil_scoped_acquire gil;
    call_hook(held, py::cast(state, py::return_value_policy::reference));
  };
}

void bind_checkpoints(py::class_<Accelerator>& accelerator) {
  accelerator
      .def(
          "save_state",
          [](Accelerator& self,
             const std::optional<std::string>& folder,
             bool async,
             bool overwrite,
             bool exclude_frozen_parameters) {
            const SaveStateOptions options{
                .async = async,
                .overwrite = overwrite,
                .exclude_frozen_parameters = exclude_frozen_parameters};
            if (!folder) {
              return self.save_state(options).string();
            }
            self.save_state(*folder, options);
            return *folder;
          },
          py::arg("folder") = std::nullopt,
          py::arg("async_save") = false,
          py::arg("overwrite") = false,
          py::arg("exclude_frozen_parameters") = false,
          NoGil())
      .def("wait_for_save", &Accelerator::wait_for_save, NoGil())
      .def(
          "load_state",
          [](Accelerator& self,
             const std::optional<std::string>& folder,
             bool strict,
             bool training_loop) {
            if (!folder) {
              return self.load_state().string();
            }
            self.load_state(
                *folder,
                {.strict = strict, .may_lack_schedulers = true, .training_loop = training_loop});
            return *folder;
          },
          py::arg("folder") = std::nullopt,
          py::arg("strict") = true,
          py::arg("training_loop") = true,
          NoGil())
      .def(
          "resume_latest",
          [](Accelerator& self) {
            const auto folder = self.resume_latest();
            return folder ? std::optional(folder->string()) : std::nullopt;
          },
          NoGil())
      .def(
          "save_model",
          [](Accelerator& self,
             const py::object& module,
             const std::string& folder,
             const std::string& max_shard_size) {
            const NamedTensors tensors = tensors_of_python(module);
            const py::gil_scoped_release no_gil;
            checkpoint::SaveModelOptions options;
            options.max_shard_size = max_shard_size;
            Internals::save_model_tensors(self, tensors, folder, options);
          })
      .def(
          "register_for_checkpointing",
          [](Accelerator& self, const py::object& object, py::object get, py::object set) {
            Internals::add_checkpointable(
                self, checkpointable_of(std::move(get), std::move(set), object.ptr()));
          })
      .def(
          "set_own_files",
          [](Accelerator& self, py::object write) {
            Internals::set_own_files(
                self,
                [held = Held<>(std::move(write))](
                    const std::filesystem::path& folder, const SaveStateOptions& options) {
                  const py::gil_scoped_acquire gil;
                  call_hook(held, folder.string(), options.exclude_frozen_parameters);
                });
          })
      .def(
          "register_save_state_pre_hook",
          [](Accelerator& self, py::object hook) {
            self.register_save_state_pre_hook(hook_of<StateBeingSaved>(std::move(hook)));
          })
      .def("register_load_state_pre_hook", [](Accelerator& self, py::object hook) {
        self.register_load_state_pre_hook(hook_of<StateBeingLoaded>(std::move(hook)));
      });
}

void bind_logs(py::class_<Accelerator>& accelerator) {
  accelerator
      .def(
          "init_trackers",
          [](Accelerator& self, const std::string& project_name, const py::dict& config) {
            const nlohmann::json json = to_json(config, "init_trackers");
            const py::gil_scoped_release no_gil;
            Internals::init_trackers(self, project_name, json);
          },
          py::arg("project_name"),
          py::arg("config"))
      .def(
          "log",
          [](Accelerator& self,
             const std::map<std::string, double>& values,
             std::optional<int64_t> step) { self.log(values, step); },
          NoGil())
      .def("log_text", &Accelerator::log_text, NoGil())
      .def("get_tracker", &Accelerator::get_tracker)
      .def("end_training", &Accelerator::end_training, NoGil())
      .def("request_preemption", &Accelerator::request_preemption);
}

void bind_local_sgd(py::module_& module) {
  py::enum_<LocalOptimizerState>(module, "LocalOptimizerState")
      .value("KEEP", LocalOptimizerState::kKeep)
      .value("AVERAGE", LocalOptimizerState::kAverage);
  py::class_<LocalSgd>(module, "LocalSgd")
      .def(
          py::init([](Accelerator& accelerator,
                      const py::object& model,
                      int64_t local_sgd_steps,
                      bool enabled,
                      int64_t warmup_steps,
                      bool average_buffers,
                      LocalOptimizerState optimizer_state) {
            const void* const id = id_of(model);
            const py::gil_scoped_release no_gil;
            return Internals::local_sgd(
                accelerator,
                id,
                {.local_sgd_steps = local_sgd_steps,
                 .enabled = enabled,
                 .warmup_steps = warmup_steps,
                 .average_buffers = average_buffers,
                 .optimizer_state = optimizer_state});
          }),
          py::arg("accelerator"),
          py::arg("model"),
          py::arg("local_sgd_steps") = 8,
          py::arg("enabled") = true,
          py::arg("warmup_steps") = 0,
          py::arg("average_buffers") = true,
          py::arg("optimizer_state") = LocalOptimizerState::kKeep,
          py::keep_alive<1, 2>())
      .def("step", &LocalSgd::step, NoGil())
      .def("finish", &LocalSgd::finish, NoGil())
      .def_property_readonly("steps", &LocalSgd::steps);
}

}  // namespace

void bind_accelerator(py::module_& module) {
  py::class_<Scope>(module, "Scope").def("end", &Scope::end);
  py::class_<CollectiveScope>(module, "CollectiveScope")
      .def("finish", &CollectiveScope::finish, NoGil())
      .def("abandon", &CollectiveScope::abandon, NoGil());
  bind_byte_collectives(module);
  bind_saved_states(module);
  module.def("fsdp_words", &fsdp_words);
  module.def("share_of", &share_of);
  py::class_<Accelerator> accelerator(module, "Accelerator", DestroyedWithoutGil());
  accelerator
      .def(py::init([](const py::dict& options, const WorldSpec& world, const Group& group) {
        AcceleratorOptions parsed = accelerator_options(options);
        const py::gil_scoped_release no_gil;
        return std::make_unique<Accelerator>(std::move(parsed), world, group);
      }))
      .def_property_readonly("device", &Accelerator::device)
      .def_property_readonly("distributed_type", &Accelerator::distributed_type);
  bind_prepare(accelerator);
  bind_step(accelerator);
  bind_values(accelerator);
  bind_checkpoints(accelerator);
  bind_logs(accelerator);
  bind_local_sgd(module);
}

}  // namespace lockstep::python
