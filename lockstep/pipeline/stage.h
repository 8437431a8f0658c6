// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/pipeline/pipeline_runner.h"
#include "lockstep/pipeline_schedule/pipeline_schedule.h"

namespace lockstep::pipeline {

/// The chunks of this rank as a differentiable function: its loss can be passed to any backward,
/// optimizer and clipping, as that of a model in one process.
///
/// Guarantee: the loss, the gradients and the values of tied parameters are those of one process
/// that computes the mean of the micro-batches' losses. A tied parameter is one whose name several
/// ranks have: each has a copy, and gets the sum of all copies' gradients.
///
/// Cost: that of PipelineRunner, an all-reduce of each tied gradient among its ranks, and memory
/// for one more gradient of each parameter until the backward of the loss.
///
/// Not thread-safe. Works in one process, too, on a line of one rank.
class Stage {
 public:
  struct Tensors {
    NamedTensors parameters;  ///< Of this rank's chunks, under their names in the full model.
    NamedTensors buffers;
  };

  /// Throws ConfigError as PipelineRunner does, and if copies of a tied parameter have different
  /// shapes or dtypes. Collective over `line`.
  Stage(
      std::vector<Chunk> chunks,
      Tensors tensors,
      const Group& line,
      const pipeline_schedule::ScheduleShape& shape,
      LossFunction loss);

  /// Returns the mean of the micro-batches' losses, a 0-d tensor that is equal on every rank.
  /// Unless gradients are disabled (NoGradGuard), it computes them as well, and the tensor's
  /// backward adds them to the parameters; it may run once. Collective over the line.
  at::Tensor forward(const MicroBatches& batch);
  /// Does the same with a batch that divides into equal micro-batches along dimension 0. The first
  /// rank reads `inputs`, the last one `targets`. Throws ConfigError if a size does not divide.
  at::Tensor forward(const at::Tensor& inputs, const at::Tensor& targets);

  /// Sets what returns the factor that keeps 16-bit gradients from vanishing within forward; the
  /// loss and its gradients do not contain it. It must be equal on all ranks.
  void set_loss_scale(std::function<double()> scale) { loss_scale_ = std::move(scale); }

  /// Sets the number of micro-batches of later batches, on all ranks alike. Throws ConfigError for
  /// one that the schedule cannot have.
  void set_micro_batches(int micro_batches);

  /// Gives all copies of tied parameters the first rank's values. Collective over the line.
  void make_copies_equal();
  /// Returns `tensors` under their names in the full model.
  NamedTensors with_full_names(NamedTensors tensors) const;
  /// Returns whether a rank before this one has a copy of the parameter.
  bool is_later_copy(const at::Tensor& parameter) const;
  /// Returns whether only other ranks have a tensor of this name.
  bool is_elsewhere(const std::string& name) const { return elsewhere_.contains(name); }
  const Group& line() const { return line_; }
  const pipeline_schedule::ScheduleShape& shape() const { return shape_; }

 private:
  struct Tied {
    at::Tensor parameter;
    Group copies;  ///< The ranks that have one, in the order of the line.
  };

  void find_tied(const NamedTensors& parameters);
  void add_tied_gradients(BatchGradients& computed);

  PipelineRunner runner_;
  Tensors tensors_;
  std::map<const void*, std::string> names_;
  Group line_;
  pipeline_schedule::ScheduleShape shape_;
  LossFunction loss_;
  std::function<double()> loss_scale_;
  std::vector<Tied> tied_;  ///< In the order of their names.
  std::set<std::string> elsewhere_;
};

}  // namespace lockstep::pipeline
