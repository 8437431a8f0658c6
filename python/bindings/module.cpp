// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/log.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {
void bind_sequences(py::module_& module);
}  // namespace lockstep::python
PYBIND11_MODULE(_core, module) {
  using namespace lockstep::python;
  module.doc() = "The C++ library of lockstep. Use the package lockstep instead.";
  module.attr("__version__") = LOCKSTEP_VERSION;
  module.def("set_log_spelling", &lockstep::set_log_spelling, py::arg("spelling"));
  bind_errors(module);
  bind_group(module);
  bind_optimizers(module);
  bind_schedules(module);
  bind_loaders(module);
  bind_tracking(module);
  bind_accelerator(module);
  bind_engine(module);
  bind_experts(module);
  bind_pipeline(module);
  bind_weights(module);
  bind_sequences(module);
}
