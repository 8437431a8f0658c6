// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <torch/csrc/utils/pybind.h>

namespace lockstep {
class Group;
}

/// The module lockstep._core: the C++ library for the Python package lockstep.
///
/// Every binding that may wait for other processes, a disk or autograd releases the GIL. Functions
/// that call Python take it.
namespace lockstep::python {

namespace py = pybind11;

/// Releases the GIL during a call.
using NoGil = py::call_guard<py::gil_scoped_release>;

/// Releases the GIL while an object is destroyed: it joins threads, which may need the GIL to free
/// a tensor of Python. For classes that own a Group.
using DestroyedWithoutGil = py::release_gil_before_calling_cpp_dtor;

/// Owns a Python object. Copies and destruction are safe without the GIL.
template <typename Object = py::object>
class Held {
 public:
  Held() = default;
  explicit Held(Object object)
      : object_(new Object(std::move(object)), [](Object* held) {
          if (Py_IsFinalizing() != 0) {
            held->release();  // The interpreter frees it.
          } else {
            const py::gil_scoped_acquire gil;
            *held = Object();
          }
          delete held;
        }) {}
  /// Returns the object. The caller has the GIL.
  const Object& get() const { return *object_; }

 private:
  std::shared_ptr<Object> object_;
};

void bind_errors(py::module_& module);
void bind_group(py::module_& module);
void bind_pending(py::module_& module);
/// Binds the operations of a group that return a Pending.
void bind_starts(py::class_<Group>& bound);
void bind_optimizers(py::module_& module);
void bind_schedules(py::module_& module);
void bind_loaders(py::module_& module);
void bind_accelerator(py::module_& module);
void bind_engine(py::module_& module);
void bind_experts(py::module_& module);
void bind_pipeline(py::module_& module);
void bind_tracking(py::module_& module);
void bind_weights(py::module_& module);
void bind_sequences(py::module_& module);

}  // namespace lockstep::python
