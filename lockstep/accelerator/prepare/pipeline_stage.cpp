// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/prepare/pipeline_stage.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/flat/parameters.h"
#include "lockstep/pipeline/stage.h"

namespace lockstep::internal {
namespace {

void refuse(bool is_wrong, const std::string& message) {
  if (is_wrong) {
    throw ConfigError("prepare", message);
  }
}

void expect_fitting_model(const RunContext& context, const GivenModel& model, bool is_first) {
  const int stages = context.mesh.pipeline.size();
  const std::string mesh = mesh_text(context.mesh.shape);
  refuse(
      stages > 1 && !model.pipeline,
      fmt::format(
          "the mesh {} divides the layers of a model, but this model is no pipeline; expected a "
          "PipelineModule, or a mesh without pp",
          mesh));
  refuse(
      stages > 1 && !is_first,
      fmt::format(
          "the mesh {} has pp, which is for one model, and another one is prepared already; "
          "prepare "
          "each further model by an Accelerator of its own",
          mesh));
  refuse(
      model.pipeline && model.pipeline->line().size() != stages,
      fmt::format(
          "the pipeline has {} stages, but the mesh of this Accelerator {}; expected the "
          "same; construct the pipeline for this mesh",
          model.pipeline ? model.pipeline->line().size() : 0,
          stages));
  refuse(
      model.pipeline && context.options.zero && context.options.zero->stage == 3,
      "got a pipeline with ZeRO stage 3, which would gather each stage's parameters for every "
      "micro-batch; expected stage 0, 1 or 2");
}

/// The optimizer of a stage without parameters would have nothing to do, and its loss no backward.
void expect_trained_parameters(const RunContext& context, const GivenModel& model) {
  const bool trains = !trainable(model.parameters()).empty();
  refuse(
      any_rank(context.mesh.pipeline, trains) && any_rank(context.mesh.pipeline, !trains),
      fmt::format(
          "a stage of the pipeline has no trained parameter{}; expected one in each; cut the "
          "layers at other places, or use fewer stages",
          trains ? "" : fmt::format(" (that of process {})", context.rank())));
}

}  // namespace

void prepare_stage(
    const RunContext& context,
    GivenModel& model,
    bool is_first,
    const std::shared_ptr<TrainingStep>& step) {
  expect_fitting_model(context, model, is_first);
  if (!model.pipeline) {
    return;
  }
  expect_trained_parameters(context, model);
  const auto stage = model.pipeline;
  model.parameters = [stage, own = std::move(model.parameters)] {
    return stage->with_full_names(own());
  };
  model.buffers = [stage, own = std::move(model.buffers)] { return stage->with_full_names(own()); };
  if (model.experts) {
    model.experts = [stage, own = std::move(model.experts)] {
      expert_parallel::ModelExperts experts = own();
      experts.parameters = stage->with_full_names(std::move(experts.parameters));
      return experts;
    };
  }
  stage->make_copies_equal();
  stage->set_loss_scale([weak = std::weak_ptr<TrainingStep>(step)] {
    const auto alive = weak.lock();
    return alive && alive->scaler() != nullptr ? alive->scaler()->get_scale() : 1;
  });
}

}  // namespace lockstep::internal
