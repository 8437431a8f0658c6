// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "lockstep/checkpoint/weights/load_model.h"
#include "lockstep/checkpoint/weights/save_model.h"
#include "python/bindings/bindings.h"
#include "python/bindings/models.h"

namespace lockstep::python {

void bind_weights(py::module_& module) {
  module.def(
      "load_checkpoint_in_model",
      [](const py::object& model, const std::string& path, bool strict) {
        const NamedTensors tensors = tensors_of_python(model);
        const py::gil_scoped_release no_gil;
        checkpoint::LoadedNames names =
            checkpoint::load_checkpoint_in_model(tensors, path, {.strict = strict});
        return std::pair(std::move(names.missing), std::move(names.unexpected));
      });
  // Writes the state dict of a module, or any dict of tensors, in transformers' format.
  module.def(
      "save_tensors",
      [](const py::dict& all, const std::string& folder, const std::string& max_shard_size) {
        NamedTensors tensors;
        for (const auto& [name, tensor] : all) {
          tensors.push_back({name.cast<std::string>(), tensor.cast<at::Tensor>()});
        }
        const py::gil_scoped_release no_gil;
        checkpoint::SaveModelOptions options;
        options.max_shard_size = max_shard_size;
        return checkpoint::save_model(tensors, folder, options);
      });
}

}  // namespace lockstep::python
