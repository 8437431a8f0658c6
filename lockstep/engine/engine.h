// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/error.h"
#include "lockstep/data/loader/loader.h"
#include "lockstep/engine/checkpoint/checkpoint_options.h"
#include "lockstep/engine/engine_core.h"
#include "lockstep/engine/profiler/module_tree.h"
#include "lockstep/engine/setup/engine_setup.h"
#include "lockstep/pipeline/stage.h"

namespace lockstep {

/// A pipeline::PipelineModule.
template <typename Model>
concept PipelineHandle = requires(const Model& model) {
  model->stage()->line();
};

/// DeepSpeed's three-call training loop, configured by ds_config.json.
///
///     auto [engine, optimizer, loader, scheduler] =
///         lockstep::initialize(net, {.config = "ds_config.json"}, dataset);
///     for (auto& batch : loader) {
///       auto loss = cross_entropy(engine(batch.data), batch.target);
///       engine.backward(loss);
///       engine.step();
///     }
///
/// - `engine(inputs...)` runs the model's forward in the configured precision. Parameters keep
///   their dtype, unless data_types.param_dtype is set. Float32 parameters have no separate master
///   copy. For 16-bit ones, with fp16 or bf16, ranks keep float32 masters, sharded over the ranks
///   even in stage 0. With fp16 and bf16, operations compute in that dtype, and a result that is
///   one tensor is returned as float32.
/// - `backward(loss)` divides by the micro-steps in an update, scales with fp16, and averages: at
///   the boundary in stages 0 and 1, after every micro-step in stages 2 and 3.
/// - `step()` counts a micro-step. At the boundary it clips the optimizer's gradients, updates,
///   steps the scheduler unless gradients overflowed, and drops the model's gradients.
///
/// EngineCore declares the calls that do not need the model. An unknown key in ds_config.json is an
/// error; see docs/ds_config.md. A handle: copies refer to the same engine.
/// Modelled on DeepSpeed 0.19's DeepSpeedEngine.
template <ModuleHandle Model>
class Engine : public EngineCore {
 public:
  Engine(std::shared_ptr<EngineContext> context, Model model)
      : EngineCore(std::move(context)), model_(std::move(model)) {}

  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    const Forward forward(*this);
    auto result = [&] {
      auto cast = accelerator().autocast();
      return model_->forward(std::forward<Inputs>(inputs)...);
    }();
    if constexpr (std::is_same_v<decltype(result), at::Tensor>) {
      if (result.is_floating_point() && result.scalar_type() != at::kDouble) {
        result = result.to(at::kFloat);
      }
    }
    return result;
  }

  /// Trains a pipeline for one update: forward and backward of gradient_accumulation_steps()
  /// micro-batches, clipping, step and scheduler. Returns the mean loss of all ranks. `batch` has
  /// as many inputs, read on the first rank of the pipeline, and targets, read on the last one.
  /// Collective.
  double train_batch(const pipeline::MicroBatches& batch) requires PipelineHandle<Model> {
    set_micro_batches();
    const at::Tensor loss = (*this)(batch);
    backward(loss);
    step();
    return mean_of_ranks(loss);
  }
  /// Does the same with the next gradient_accumulation_steps batches of a loader's iterator.
  template <typename Iterator>
  requires PipelineHandle<Model> && requires(Iterator& next) { (*next).target; }
  double train_batch(Iterator& next) { return train_batch(micro_batches_of(next)); }
  /// Computes the loss of a pipeline on `batch`, without dropout and gradients.
  /// Returns the mean of all ranks. Collective.
  double eval_batch(const pipeline::MicroBatches& batch) requires PipelineHandle<Model> {
    set_micro_batches();
    const auto cast = accelerator().autocast();
    return mean_of_ranks(at::scalar_tensor(model_->eval_batch(batch), at::kDouble));
  }
  template <typename Iterator>
  requires PipelineHandle<Model> && requires(Iterator& next) { (*next).target; }
  double eval_batch(Iterator& next) { return eval_batch(micro_batches_of(next)); }

  /// Returns the user's model; works after destroy(), too.
  const Model& module() const { return model_; }
  void train(bool on = true) {
    accelerator();  // Throws ConfigError once the engine is destroyed.
    model_->train(on);
  }
  void eval() { train(false); }

  /// Writes the full model as one safetensors file, `<save_dir>/<save_filename>`, with
  /// floating-point tensors rounded to 16 bits: to the compute dtype, fp16 or bf16, or to `dtype`.
  /// In every stage; stage 3 gathers one tensor at a time. Atomic; replaces a file of that name.
  /// `exclude_frozen_parameters` omits parameters that require no gradient; buffers are
  /// written. Returns true, as DeepSpeed after writing; else it throws. Collective. Throws
  /// ConfigError for a model that computes in float32 without `dtype`, and for a name without the
  /// ending .safetensors.
  bool save_16bit_model(
      const std::filesystem::path& save_dir,
      const std::string& save_filename = "model.safetensors",
      std::optional<at::ScalarType> dtype = std::nullopt,
      bool exclude_frozen_parameters = false) {
    checkpoint::SaveModelOptions options = save_16bit_options(config(), save_filename, dtype);
    options.exclude_frozen_parameters = exclude_frozen_parameters;
    accelerator().save_model(model_, save_dir, options);
    return true;
  }

 private:
  void set_micro_batches() {
    model_->stage()->set_micro_batches(static_cast<int>(gradient_accumulation_steps()));
  }
  double mean_of_ranks(const at::Tensor& loss) {
    return accelerator().reduce(loss.detach(), ReduceOp::kAvg).template item<double>();
  }
  template <typename Iterator>
  pipeline::MicroBatches micro_batches_of(Iterator& next) {
    pipeline::MicroBatches batch;
    for (int64_t i = 0; i < gradient_accumulation_steps(); ++i, ++next) {
      if (next == std::default_sentinel) {
        throw ConfigError(
            "engine",
            "the loader has ended within a batch of a pipeline; expected "
            "gradient_accumulation_steps "
            "micro-batches; begin another pass after the last full batch");
      }
      batch.inputs.push_back((*next).data);
      batch.targets.push_back((*next).target);
    }
    return batch;
  }

  Model model_;
};

/// Takes the place of a loader if no dataset was given.
struct NoLoader {};

/// Returns (engine, optimizer, NoLoader, scheduler) for a model. Optimizer and scheduler are empty
/// handles if none is configured. The model is cast to data_types.param_dtype, if that is set.
/// Throws ConfigError for an invalid configuration, with all its errors. Collective.
template <ModuleHandle Model>
auto initialize(const Model& model, InitializeOptions options) {
  EngineSetup setup(
      std::move(options), parameters_of(*model), buffers_of(*model), classes_of(*model));
  Optimizer optimizer;
  if (auto plain = setup.optimizer_for(parameters_of(*model))) {
    optimizer = std::get<1>(setup.accelerator().prepare(model, plain));
  } else {
    setup.accelerator().prepare(model);
  }
  if constexpr (PipelineHandle<Model>) {
    setup.set_pipeline();
  }
  auto context = setup.finish(
      optimizer,
      [model] { return model->parameters(); },
      [model] { return ModuleTree(classes_of(*model), parameters_of(*model)); });
  Scheduler scheduler = setup.scheduler();
  return std::tuple(
      Engine<Model>(std::move(context), model),
      std::move(optimizer),
      NoLoader(),
      std::move(scheduler));
}

/// Does the same with a loader of `dataset`, in micro-batches, reshuffled each epoch.
template <ModuleHandle Model, typename Dataset>
auto initialize(const Model& model, InitializeOptions options, Dataset dataset) {
  auto [engine, optimizer, none, scheduler] = initialize(model, std::move(options));
  auto loader =
      engine.accelerator().prepare(data::Loader(std::move(dataset), engine.loader_options()));
  return std::tuple(engine, optimizer, loader, scheduler);
}

}  // namespace lockstep
