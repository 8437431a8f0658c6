// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/pipeline/chunk.h"
#include "lockstep/pipeline_schedule/pipeline_schedule.h"

namespace lockstep::pipeline {

/// Computes the loss of one micro-batch: a tensor with one element, which must require a gradient
/// in training. It may take `const at::Tensor& output`.
using LossFunction = std::function<at::Tensor(const Values& output, const at::Tensor& target)>;

/// The batch of a call: one tensor for each micro-batch.
struct MicroBatches {
  std::vector<at::Tensor> inputs;   ///< Read on the first rank only.
  std::vector<at::Tensor> targets;  ///< Read on the last rank only.
};

/// The mean of a batch's losses, and this rank's trained parameters, each once, with gradients. The
/// gradient of a parameter that the loss does not depend on is undefined.
struct BatchGradients {
  double loss = 0;
  std::vector<at::Tensor> parameters = {};
  std::vector<at::Tensor> gradients = {};
};

/// Executes the schedule of a pipeline on this rank: computes its chunks for each micro-batch, and
/// sends activations and gradients to the neighbours.
///
/// Guarantee: the loss and the gradients are those of one process that calls
/// `(loss / micro_batches).backward()` for one micro-batch after another; each rank has the
/// gradients of its own chunks. Only dropout and other random numbers differ, since each rank draws
/// its own. Numbers of tensors, shapes and dtypes may change between micro-batches and chunks.
///
/// Frozen layers, and chunks without parameters, are permitted. If no output of a chunk requires a
/// gradient, a message says so, and no gradient is computed before it. Of a parameter that
/// chunks on several ranks share, each rank gets its own part of the gradient; Stage adds them.
///
/// Cost: for p > 1 ranks with v chunks each, a micro-batch sends (pv - 1) activations and as many
/// gradients, each a header of 128 bytes and its tensor; a batch has one broadcast of 8 bytes. This
/// rank holds as many activations as `simulate` says for the schedule. A kZeroBubble schedule
/// keeps the graph of a chunk for the backward for weights, which computes the gradients between
/// the chunk's layers a second time: a backward in two parts takes up to F more, where a whole one
/// takes 2 F.
///
/// Errors: an error on one rank is thrown there. The others end with a CommError when that rank
/// leaves the group, or with the group's timeout. After an exception the runner and its group
/// cannot be used. Ranks with different schedules get a CommError.
///
/// Not thread-safe. Modelled on torch.distributed.pipelining's schedules and DeepSpeed's
/// PipelineEngine.
class PipelineRunner {
 public:
  /// `chunks`: those of this rank, in the order of the model; chunk c is on rank c % shape.ranks.
  /// `line`: the ranks of the pipeline, in its order. `device`: of the received tensors; if not
  /// given, that of this rank's first parameter, or the CPU.
  ///
  /// Throws ConfigError for a shape that compute_actions refuses, for a line of another size, and
  /// for another number of chunks. Local.
  PipelineRunner(
      std::vector<Chunk> chunks,
      Group line,
      const pipeline_schedule::ScheduleShape& shape,
      std::optional<at::Device> device = std::nullopt);

  /// Computes the loss, on every rank, and the gradients of the loss times `loss_scale`. It leaves
  /// `.grad` as it is, and runs no hooks of the parameters. Collective over the line.
  ///
  /// Throws ConfigError if a tensor that this rank reads is missing, if a chunk returns an
  /// undefined tensor, and if the loss has several elements or requires no gradient.
  BatchGradients compute_gradients(
      const MicroBatches& batch, const LossFunction& loss, double loss_scale = 1);
  /// Does the same, adds the gradients to `.grad` of the parameters, and returns the loss.
  double train_batch(const MicroBatches& batch, const LossFunction& loss);

  /// Computes the loss without gradients, and otherwise does the same as train_batch. It does not
  /// change the modules' mode: call `eval()` on them before, and `train()` after it.
  double eval_batch(const MicroBatches& batch, const LossFunction& loss);

  /// Sets the number of micro-batches of later calls, on all ranks alike. Throws ConfigError as the
  /// constructor does.
  void set_micro_batches(int micro_batches);

  /// Returns the most activations that the last train_batch held at once, counted for each chunk.
  int peak_activations() const { return peak_activations_; }

 private:
  BatchGradients execute(
      const std::vector<pipeline_schedule::Action>& actions,
      const MicroBatches& batch,
      const LossFunction& loss,
      std::optional<double> loss_scale);

  std::vector<Chunk> chunks_;
  Group line_;
  pipeline_schedule::ScheduleShape shape_;
  std::optional<at::Device> device_;                   ///< The program's.
  std::vector<pipeline_schedule::Action> training_;    ///< This rank's actions.
  std::vector<pipeline_schedule::Action> evaluation_;  ///< Without backwards.
  int peak_activations_ = 0;
};

}  // namespace lockstep::pipeline
