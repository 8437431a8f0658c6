// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/pipeline.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/scalar_tensor.h>

#include "lockstep/base/error.h"
#include "lockstep/pipeline/cut.h"
#include "lockstep/pipeline/stage.h"

namespace lockstep::python {
namespace {

using pipeline::Chunk;
using pipeline::Stage;
using pipeline::Values;
using NamedList = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors named(const NamedList& list) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : list) {
    tensors.push_back({name, tensor});
  }
  return tensors;
}

pipeline_schedule::ScheduleKind kind_of(const std::string& name) {
  for (const auto kind : pipeline_schedule::kScheduleKinds) {
    if (pipeline_schedule::name_of(kind) == name) {
      return kind;
    }
  }
  throw ConfigError(
      "PipelineModule",
      fmt::format(
          "schedule is '{}'; expected 'gpipe', '1f1b', 'interleaved' or 'zero-bubble'", name));
}

/// Returns a chunk that calls Python with the tensors of its input, of which it returns a list.
Chunk chunk_of(py::object function, std::vector<at::Tensor> parameters) {
  return {
      [held = Held<>(std::move(function))](const Values& input) -> Values {
        const py::gil_scoped_acquire gil;
        return held.get()(input.tensors).cast<std::vector<at::Tensor>>();
      },
      std::move(parameters)};
}

std::shared_ptr<Stage> make_stage(
    const std::vector<std::pair<py::object, std::vector<at::Tensor>>>& functions,
    const NamedList& parameters,
    const NamedList& buffers,
    const Group& line,
    const std::string& schedule,
    int micro_batches,
    py::object loss) {
  std::vector<Chunk> chunks;
  for (const auto& [function, own] : functions) {
    chunks.push_back(chunk_of(function, own));
  }
  const pipeline_schedule::ScheduleShape shape{
      .kind = kind_of(schedule),
      .ranks = line.size(),
      .chunks_per_rank = static_cast<int>(functions.size()),
      .micro_batches = micro_batches};
  const py::gil_scoped_release no_gil;
  return std::make_shared<Stage>(
      std::move(chunks),
      Stage::Tensors{named(parameters), named(buffers)},
      line,
      shape,
      [held = Held<>(std::move(loss))](const Values& /*output*/, const at::Tensor& number) {
        const py::gil_scoped_acquire gil;
        return held.get()(number.item<int64_t>()).cast<at::Tensor>();
      });
}

/// Python has the batch itself: chunks get the numbers of micro-batches in place of inputs.
at::Tensor forward_numbers(Stage& stage, int micro_batches) {
  stage.set_micro_batches(micro_batches);
  pipeline::MicroBatches batch;
  for (int i = 0; i < micro_batches; ++i) {
    batch.inputs.push_back(at::scalar_tensor(i, at::kLong));
  }
  batch.targets = batch.inputs;
  return stage.forward(batch);
}

}  // namespace

int pipeline_stages_of(const py::object& module) {
  return py::getattr(module, "_lockstep_pipeline_stages", py::int_(1)).cast<int>();
}

std::shared_ptr<Stage> connect_pipeline(const py::object& module, const Group& line) {
  if (!py::hasattr(module, "_lockstep_pipeline_stages")) {
    return nullptr;
  }
  return module.attr("_connect_stage")(line).cast<std::shared_ptr<Stage>>();
}

void bind_pipeline(py::module_& module) {
  py::class_<Stage, std::shared_ptr<Stage>>(module, "PipelineStage", DestroyedWithoutGil())
      .def(
          py::init(&make_stage),
          py::arg("chunks"),
          py::arg("parameters"),
          py::arg("buffers"),
          py::arg("line"),
          py::arg("schedule"),
          py::arg("micro_batches"),
          py::arg("loss"))
      .def("forward", &forward_numbers, NoGil());
  module.def("cut_uniformly", &pipeline::cut_uniformly);
  module.def("cut_by_cost", &pipeline::cut_by_cost);
}

}  // namespace lockstep::python
