// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/base/error.h"
#include "lockstep/context_parallel/sequence_scope.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {
namespace {

/// Tensors, their dimensions of the sequence, and whether they are restored.
using Buffers = std::vector<std::tuple<at::Tensor, int64_t, bool>>;

/// A SequenceScope that Python ends with `end()`, on the thread that began it.
class PythonSequenceScope {
 public:
  PythonSequenceScope(
      const comm::MeshGroups& mesh, const Buffers& buffers, bool arange_gives_positions) {
    std::vector<SequenceBuffer> all;
    for (const auto& [tensor, dim, restore] : buffers) {
      all.push_back({tensor, dim < 0 ? dim + tensor.dim() : dim, restore});
    }
    scope_ = std::make_unique<SequenceScope>(
        mesh, all, SequenceScopeOptions{.arange_gives_positions = arange_gives_positions});
  }
  void end() { scope_.reset(); }
  /// Throws ConfigError after its end.
  const SequenceScope& get() const {
    if (scope_ == nullptr) {
      throw ConfigError(
          "maybe_context_parallel",
          "the block has ended; use mean, gather and positions within it");
    }
    return *scope_;
  }

 private:
  std::unique_ptr<SequenceScope> scope_;
};

}  // namespace

void bind_sequences(py::module_& module) {
  py::class_<PythonSequenceScope>(module, "SequenceScope")
      .def(
          py::init(
              [](Accelerator& accelerator, const Buffers& buffers, bool arange_gives_positions) {
                return PythonSequenceScope(accelerator.mesh(), buffers, arange_gives_positions);
              }),
          py::arg("accelerator"),
          py::arg("buffers"),
          py::arg("arange_gives_positions") = true)
      .def("end", &PythonSequenceScope::end)
      .def(
          "positions",
          [](const PythonSequenceScope& self, const at::Device& device) {
            return self.get().positions(device);
          },
          py::arg("device"))
      .def(
          "mean",
          [](const PythonSequenceScope& self, const at::Tensor& sum, const at::Tensor& count) {
            return self.get().mean(sum, count);
          },
          py::arg("sum"),
          py::arg("count"),
          NoGil())
      .def(
          "gather",
          [](const PythonSequenceScope& self, const at::Tensor& part, int64_t dim) {
            return self.get().gather(part, dim < 0 ? dim + part.dim() : dim);
          },
          py::arg("part"),
          py::arg("dim") = 1,
          NoGil())
      .def_property_readonly("attention_calls", [](const PythonSequenceScope& self) {
        return self.get().attention_calls();
      });
}

}  // namespace lockstep::python
