// SPDX-License-Identifier: Apache-2.0
#include "lockstep/pipeline/pipeline_runner.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/pipeline/tensor_messages.h"
#include "lockstep/pipeline_schedule/messages.h"

namespace lockstep::pipeline {
namespace {

using pipeline_schedule::Action;
using pipeline_schedule::ActionKind;
using pipeline_schedule::ActionLists;
using pipeline_schedule::ScheduleShape;

/// The state of a micro-batch in a chunk, from its forward to the end of its backward.
struct Activation {
  Values input;
  Values output;    ///< The loss / micro-batches in the last chunk.
  Values gradient;  ///< Of the output, between the two parts of a backward.
};

/// Returns a received tensor for a layer that may change it in place, which a leaf does not permit.
/// It shares memory that nothing else reads.
struct Received : torch::autograd::Function<Received> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* /*context*/, const at::Tensor& tensor) {
    return tensor.tensor_data();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::autograd::variable_list& gradients) {
    return gradients;
  }
};

bool any_requires_grad(const Values& values) {
  return std::ranges::any_of(
      values.tensors, [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

bool any_defined(const Values& values) {
  return std::ranges::any_of(
      values.tensors, [](const at::Tensor& tensor) { return tensor.defined(); });
}

/// The trained parameters of a chunk, and the sums of their gradients so far.
struct ChunkGradients {
  explicit ChunkGradients(const Chunk& chunk) {
    std::set<const void*> seen;  // Tied layers of one chunk have one parameter.
    std::copy_if(
        chunk.parameters.begin(),
        chunk.parameters.end(),
        std::back_inserter(parameters),
        [&](const at::Tensor& each) {
          return each.requires_grad() && seen.insert(each.unsafeGetTensorImpl()).second;
        });
    sums.resize(parameters.size());
  }

  /// Adds as autograd does: the first gradient becomes the sum, unless its memory is shared.
  static void add(at::Tensor& sum, const at::Tensor& gradient) {
    const c10::AutoGradMode no_grad(false);
    if (!gradient.defined()) {
      return;
    }
    if (sum.defined()) {
      sum = sum.is_sparse() ? at::add(gradient, sum) : sum.add_(gradient);
      return;
    }
    const bool is_own = gradient.use_count() == 1 && gradient.layout() == at::kStrided &&
                        gradient.storage().use_count() == 1 &&
                        gradient.is_non_overlapping_and_dense();
    sum = is_own ? gradient : gradient.clone();
  }

  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> sums;  ///< Undefined without a gradient.
};

at::Device device_of(const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks) {
    if (!chunk.parameters.empty()) {
      return chunk.parameters.front().device();
    }
  }
  return at::kCPU;
}

/// Executes the actions of one batch.
class BatchRun {
 public:
  BatchRun(
      const std::vector<Chunk>& chunks,
      const ScheduleShape& shape,
      const MicroBatches& batch,
      const LossFunction& loss,
      std::optional<double> loss_scale,
      Group line,
      at::Device device)
      : chunks_(chunks),
        shape_(shape),
        last_chunk_(shape.ranks * shape.chunks_per_rank - 1),
        batch_(batch),
        loss_(loss),
        loss_scale_(loss_scale),
        rank_(line.rank()),
        messages_(std::move(line), device),
        gradients_(chunks.begin(), chunks.end()) {}

  void execute(const Action& action) {
    switch (action.kind) {
      case ActionKind::kForward:
        return forward(action);
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return backward(action);
      case ActionKind::kBackwardWeight:
        return backward_weight(action);
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient: {
        const int tag = tag_of(action);
        return messages_.send(results_.extract(tag).mapped(), peer_of(action), tag);
      }
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        return messages_.receive(peer_of(action), tag_of(action));
    }
  }

  /// Waits for the sends, and returns the mean loss; 0 if this rank does not compute the loss.
  double finish() {
    messages_.finish();
    double sum = 0;
    for (const at::Tensor& loss : losses_) {
      sum += loss.item<double>();
    }
    return sum / shape_.micro_batches;
  }

  int peak_activations() const { return static_cast<int>(peak_activations_); }

  /// Adds the gradients to `result`, each parameter once.
  void take_gradients(BatchGradients& result) {
    std::map<const void*, size_t> places;
    for (ChunkGradients& chunk : gradients_) {
      for (size_t i = 0; i < chunk.parameters.size(); ++i) {
        const auto [place, is_new] =
            places.emplace(chunk.parameters[i].unsafeGetTensorImpl(), result.parameters.size());
        if (is_new) {
          result.parameters.push_back(chunk.parameters[i]);
          result.gradients.push_back(std::move(chunk.sums[i]));
        } else {
          ChunkGradients::add(result.gradients[place->second], chunk.sums[i]);
        }
      }
    }
  }

 private:
  using Place = std::pair<int, int>;  // Chunk, micro-batch.

  size_t index_of(const Action& action) const {
    return static_cast<size_t>(action.chunk / shape_.ranks);
  }
  const Chunk& chunk_of(const Action& action) const { return chunks_[index_of(action)]; }
  bool trains() const { return loss_scale_.has_value(); }

  int peer_of(const Action& action) const {
    return pipeline_schedule::peer_of(action, rank_, shape_.ranks);
  }

  /// Names a tensor between two chunks, the first of which is `chunk`.
  int tag(int chunk, int micro_batch, bool gradient) const {
    return 2 * (micro_batch * last_chunk_ + chunk) + (gradient ? 1 : 0);
  }

  int tag_of(const Action& message) const {
    const bool gradient =
        message.kind == ActionKind::kSendGradient || message.kind == ActionKind::kReceiveGradient;
    const bool of_previous =
        message.kind == ActionKind::kSendGradient || message.kind == ActionKind::kReceiveActivation;
    return tag(message.chunk - (of_previous ? 1 : 0), message.micro_batch, gradient);
  }

  /// Returns tensors that another chunk has computed.
  Values take(int tag) {
    return shape_.ranks == 1 ? results_.extract(tag).mapped() : messages_.take(tag);
  }

  Values input_of(const Action& action) {
    if (action.chunk == 0) {
      return batch_.inputs[static_cast<size_t>(action.micro_batch)].detach();
    }
    Values input;
    for (const at::Tensor& tensor :
         take(tag(action.chunk - 1, action.micro_batch, false)).tensors) {
      // A leaf of this chunk's graph, also if the chunk before it is on this rank.
      input.tensors.push_back(tensor.detach().requires_grad_(trains() && tensor.requires_grad()));
    }
    return input;
  }

  void forward(const Action& action) {
    Activation& activation = activations_[Place(action.chunk, action.micro_batch)];
    peak_activations_ = std::max(peak_activations_, activations_.size());
    activation.input = input_of(action);
    Values given = activation.input;
    for (at::Tensor& tensor : given.tensors) {
      if (shape_.ranks > 1 && tensor.requires_grad()) {
        tensor = Received::apply(tensor);
      }
    }
    activation.output = chunk_of(action).forward(given);
    const std::vector<at::Tensor>& outputs = activation.output.tensors;
    if (outputs.empty() ||
        !std::ranges::all_of(outputs, [](const at::Tensor& each) { return each.defined(); })) {
      throw ConfigError(
          "pipeline",
          fmt::format(
              "chunk {} has returned an undefined tensor; expected its output", action.chunk));
    }
    if (action.chunk == last_chunk_) {
      activation.output = loss_of(activation.output, action.micro_batch);
    } else {
      results_[tag(action.chunk, action.micro_batch, false)] = activation.output;
    }
    if (!trains()) {
      activations_.erase(Place(action.chunk, action.micro_batch));
    }
  }

  at::Tensor loss_of(const Values& output, int micro_batch) {
    const at::Tensor loss = loss_(output, batch_.targets[static_cast<size_t>(micro_batch)]);
    if (!loss.defined() || loss.numel() != 1) {
      throw ConfigError(
          "pipeline",
          fmt::format(
              "the loss function has returned {}; expected a tensor with one element",
              loss.defined() ? fmt::format("{} elements", loss.numel()) : "an undefined tensor"));
    }
    if (trains() && !loss.requires_grad()) {
      throw ConfigError(
          "pipeline",
          "the loss requires no gradient; expected a parameter that requires one; use eval_batch "
          "for a frozen model");
    }
    losses_.push_back(loss.detach());
    const at::Tensor part = loss / shape_.micro_batches;
    return loss_scale_.value_or(1) == 1 ? part : part * *loss_scale_;
  }

  /// Computes the gradient of the input, and those of the weights unless the backward is split.
  void backward(const Action& action) {
    const auto place = activations_.find(Place(action.chunk, action.micro_batch));
    Activation& activation = place->second;
    const bool is_last = action.chunk == last_chunk_;
    if (!is_last) {
      activation.gradient = take(tag(action.chunk, action.micro_batch, true));
    }
    const bool splits = action.kind == ActionKind::kBackwardInput;
    Values input_gradient(std::vector<at::Tensor>(activation.input.tensors.size()));
    if (!any_requires_grad(activation.output) || (!is_last && !any_defined(activation.gradient))) {
      activation.output = {};  // No gradient passes this chunk.
    } else {
      ChunkGradients& weights = gradients_[index_of(action)];
      const bool keeps_graph = splits && !weights.parameters.empty();
      input_gradient = differentiate(activation, splits ? nullptr : &weights, true, keeps_graph);
    }
    if (action.chunk > 0) {
      results_[tag(action.chunk - 1, action.micro_batch, true)] = input_gradient;
    }
    if (!splits) {
      activations_.erase(place);
    }
  }

  void backward_weight(const Action& action) {
    const auto place = activations_.find(Place(action.chunk, action.micro_batch));
    if (any_defined(place->second.output)) {
      differentiate(place->second, &gradients_[index_of(action)], false, false);
    }
    activations_.erase(place);
  }

  /// Adds the gradients of `weights`, unless it is null, and returns those of the input; undefined
  /// ones without `of_input`. Hooks on the parameters' gradients do not run: the gradients are not
  /// complete yet.
  static Values differentiate(
      const Activation& activation, ChunkGradients* weights, bool of_input, bool keeps_graph) {
    std::vector<at::Tensor> variables;
    if (weights != nullptr) {
      variables = weights->parameters;
    }
    const size_t count = variables.size();
    for (const at::Tensor& input : activation.input.tensors) {
      if (of_input && input.requires_grad()) {
        variables.push_back(input);
      }
    }
    Values of_inputs(std::vector<at::Tensor>(activation.input.tensors.size()));
    if (variables.empty()) {
      return of_inputs;
    }
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> of_outputs;
    for (size_t i = 0; i < activation.output.tensors.size(); ++i) {
      // The loss has no gradient. Outputs that do not reach the loss have none either.
      const bool is_loss = activation.gradient.tensors.empty();
      if (activation.output.tensors[i].requires_grad() &&
          (is_loss || activation.gradient.tensors.at(i).defined())) {
        outputs.push_back(activation.output.tensors[i]);
        of_outputs.push_back(is_loss ? at::Tensor() : activation.gradient.tensors[i]);
      }
    }
    if (outputs.empty()) {
      return of_inputs;
    }
    const std::vector<at::Tensor> gradients = torch::autograd::grad(
        outputs,
        variables,
        of_outputs,
        keeps_graph,
        /*create_graph=*/false,
        /*allow_unused=*/true);
    for (size_t i = 0; i < count; ++i) {
      ChunkGradients::add(weights->sums[i], gradients[i]);
    }
    for (size_t i = 0, next = count; next < gradients.size(); ++i) {
      if (activation.input.tensors[i].requires_grad()) {
        of_inputs.tensors[i] = gradients[next++];
      }
    }
    return of_inputs;
  }

  const std::vector<Chunk>& chunks_;
  const ScheduleShape& shape_;
  int last_chunk_;
  const MicroBatches& batch_;
  const LossFunction& loss_;
  std::optional<double> loss_scale_;  ///< Only in training.
  int rank_;
  TensorMessages messages_;
  std::vector<ChunkGradients> gradients_;  ///< For each chunk of this rank.
  std::map<Place, Activation> activations_;
  std::map<int, Values> results_;  ///< For other chunks: by tag.
  std::vector<at::Tensor> losses_;
  size_t peak_activations_ = 0;
};

ActionLists forwards_of(const ActionLists& lists) {
  ActionLists result;
  for (const std::vector<Action>& list : lists) {
    std::copy_if(
        list.begin(),
        list.end(),
        std::back_inserter(result.emplace_back()),
        [](const Action& each) { return each.kind == ActionKind::kForward; });
  }
  return result;
}

void check_batch(const std::vector<at::Tensor>& tensors, int micro_batches, const char* name) {
  if (tensors.size() != static_cast<size_t>(micro_batches)) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "got {} {}; expected one for each of {} micro-batches",
            tensors.size(),
            name,
            micro_batches));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) {
      throw ConfigError(
          "pipeline",
          fmt::format(
              "entry {} of the {} is an undefined tensor; expected a micro-batch", i, name));
    }
  }
}

}  // namespace

PipelineRunner::PipelineRunner(
    std::vector<Chunk> chunks,
    Group line,
    const ScheduleShape& shape,
    std::optional<at::Device> device)
    : chunks_(std::move(chunks)), line_(std::move(line)), shape_(shape), device_(device) {
  if (shape.ranks != line_.size()) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "the schedule has {} ranks, but the group {}; expected the same number",
            shape.ranks,
            line_.size()));
  }
  if (chunks_.size() != static_cast<size_t>(shape.chunks_per_rank)) {
    throw ConfigError(
        "pipeline",
        fmt::format(
            "got {} chunks; expected the schedule's {} on each rank",
            chunks_.size(),
            shape.chunks_per_rank));
  }
  set_micro_batches(shape.micro_batches);
}

void PipelineRunner::set_micro_batches(int micro_batches) {
  ScheduleShape shape = shape_;
  shape.micro_batches = micro_batches;
  const ActionLists computations = pipeline_schedule::compute_actions(shape);
  const auto rank = static_cast<size_t>(line_.rank());
  training_ = pipeline_schedule::add_messages(computations)[rank];
  evaluation_ = pipeline_schedule::add_messages(forwards_of(computations))[rank];
  shape_ = shape;
}

BatchGradients PipelineRunner::compute_gradients(
    const MicroBatches& batch, const LossFunction& loss, double loss_scale) {
  return execute(training_, batch, loss, loss_scale);
}

double PipelineRunner::train_batch(const MicroBatches& batch, const LossFunction& loss) {
  const BatchGradients computed = compute_gradients(batch, loss);
  for (size_t i = 0; i < computed.parameters.size(); ++i) {
    ChunkGradients::add(computed.parameters[i].mutable_grad(), computed.gradients[i]);
  }
  return computed.loss;
}

double PipelineRunner::eval_batch(const MicroBatches& batch, const LossFunction& loss) {
  return execute(evaluation_, batch, loss, std::nullopt).loss;
}

/// `loss_scale`: nothing computes the loss alone.
BatchGradients PipelineRunner::execute(
    const std::vector<Action>& actions,
    const MicroBatches& batch,
    const LossFunction& loss,
    std::optional<double> loss_scale) {
  if (line_.rank() == 0) {
    check_batch(batch.inputs, shape_.micro_batches, "inputs");
  }
  const int last_rank = line_.size() - 1;
  if (line_.rank() == last_rank) {
    check_batch(batch.targets, shape_.micro_batches, "targets");
    if (!loss) {
      throw ConfigError("pipeline", "got no loss function; expected one on the last rank");
    }
  }
  const c10::AutoGradMode grad_mode(loss_scale.has_value());
  BatchRun run(
      chunks_, shape_, batch, loss, loss_scale, line_, device_.value_or(device_of(chunks_)));
  for (const Action& action : actions) {
    run.execute(action);
  }
  const at::Tensor mean = at::full({}, run.finish(), at::kDouble);
  BatchGradients result;
  if (loss_scale) {
    peak_activations_ = run.peak_activations();
    run.take_gradients(result);
  }
  result.loss = line_.broadcast(mean, last_rank).wait().item<double>();
  return result;
}

}  // namespace lockstep::pipeline
