// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/mesh_groups.h"
#include "lockstep/pipeline/chunk.h"
#include "lockstep/pipeline/stage.h"

namespace lockstep::pipeline {

/// Ways to cut a list of layers; see cut.h.
struct CutUniformly {};
struct CutByParameters {};
/// "regex": layers whose class name matches count, others do not.
struct CutByClass {
  std::string pattern;
};
/// Before the layers with these numbers.
struct CutAt {
  std::vector<size_t> starts;
};
/// By the times of forward and backward of each layer on a micro-batch, which the first rank
/// measures. The layers are computed one after the other on every rank before the cut, so each must
/// fit into its memory with its activations.
struct CutByTime {
  at::Tensor example;  ///< The input of the first layer.
};
using Cut = std::variant<CutUniformly, CutByParameters, CutByClass, CutAt, CutByTime>;

struct PipelineOptions {
  pipeline_schedule::ScheduleKind schedule = pipeline_schedule::ScheduleKind::k1F1B;
  int chunks_per_rank = 1;
  int micro_batches = 1;
  Cut cut = CutByParameters{};
};

/// Returns the milliseconds of each layer's forward and backward, the least of three runs each.
std::vector<double> layer_milliseconds(const Layers& layers, const at::Tensor& example);

/// A model cut into the stages of a pipeline, of which each rank holds its own. With one rank it is
/// the full model, computed in micro-batches.
///
///     pipeline::PipelineModule model(
///         pipeline::layers_of(sequential), loss, accelerator.mesh(), {.micro_batches = 8});
///     auto [prepared, optimizer, loader] = accelerator.prepare(model, adam, data);
///     for (auto& batch : loader) {
///       accelerator.backward(model->forward(batch.data, batch.target));
///       optimizer.step();
///       optimizer.zero_grad();
///     }
///
/// Guarantee: the loss and the trained parameters are those of one process. Layers keep their
/// numbers as names, "3.weight", so a checkpoint fits any number of stages. Layers that share a
/// module, or a parameter, are tied: each stage has a copy, which gets the sum of the gradients.
///
/// Layers of other stages are not kept: drop the list, too. Not thread-safe. Modelled on
/// DeepSpeed's PipelineModule.
class PipelineModuleImpl : public torch::nn::Module {
 public:
  /// `layers`: all, with equal values on all ranks, or as they are on the first. `loss`: of a
  /// micro-batch, a mean over its samples. Throws ConfigError for a cut or a schedule that does not
  /// fit, and for a stage without parameters. Collective over mesh.pipeline.
  PipelineModuleImpl(
      const Layers& layers,
      LossFunction loss,
      const comm::MeshGroups& mesh,
      const PipelineOptions& options);

  /// Returns the mean loss of a batch, equal on all ranks; see Stage::forward. Collective.
  at::Tensor forward(const at::Tensor& inputs, const at::Tensor& targets) {
    return stage_->forward(inputs, targets);
  }
  at::Tensor forward(const MicroBatches& batch) { return stage_->forward(batch); }
  /// Returns the mean loss in evaluation mode, without gradients, and restores the mode.
  double eval_batch(const at::Tensor& inputs, const at::Tensor& targets);
  double eval_batch(const MicroBatches& batch);

  /// Returns the places of the cuts; see Bounds.
  const Bounds& bounds() const { return bounds_; }
  std::shared_ptr<Stage> stage() const { return stage_; }

 private:
  double evaluate(const std::function<at::Tensor()>& loss);

  Bounds bounds_;
  std::shared_ptr<Stage> stage_;
};
TORCH_MODULE(PipelineModule);

}  // namespace lockstep::pipeline
