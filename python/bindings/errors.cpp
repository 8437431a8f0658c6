// SPDX-License-Identifier: Apache-2.0
#include <exception>

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include "lockstep/base/callback.h"
#include "lockstep/base/error.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {
namespace {

/// Creates an exception class of the package and adds it to `module`. Never destroyed: a module may
/// outlive its namespace.
PyObject* add_error(py::module_& module, const char* name, const py::tuple& bases) {
  const std::string full_name = std::string("lockstep.") + name;
  PyObject* const error = PyErr_NewException(full_name.c_str(), bases.ptr(), nullptr);
  if (error == nullptr) {
    throw py::error_already_set();
  }
  module.attr(name) = py::reinterpret_borrow<py::object>(error);
  return error;
}

PyObject* error_class = nullptr;
PyObject* config_error = nullptr;
PyObject* comm_error = nullptr;
PyObject* checkpoint_error = nullptr;

PyObject* class_of(const Error& error) {
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) {
    return config_error;
  }
  if (dynamic_cast<const CommError*>(&error) != nullptr) {
    return comm_error;
  }
  return dynamic_cast<const CheckpointError*>(&error) != nullptr ? checkpoint_error : error_class;
}

/// An error that leaves a callback of torch, such as a hook of autograd. torch raises an exception
/// of unknown type as RuntimeError, and this one with its class.
class CallbackError final : public torch::PyTorchError {
 public:
  explicit CallbackError(const Error& error)
      : torch::PyTorchError(error.what()), class_(class_of(error)) {}
  PyObject* python_type() override { return class_; }

 private:
  PyObject* class_;
};

}  // namespace

void bind_errors(py::module_& module) {
  const auto builtin = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  error_class = add_error(module, "Error", py::make_tuple(builtin(PyExc_RuntimeError)));
  const auto base = builtin(error_class);
  // Scripts that expect Accelerate's ValueError for a wrong argument catch it.
  config_error = add_error(module, "ConfigError", py::make_tuple(base, builtin(PyExc_ValueError)));
  comm_error = add_error(module, "CommError", py::make_tuple(base));
  checkpoint_error = add_error(module, "CheckpointError", py::make_tuple(base));
  set_error_replacement([](const Error& error) { throw CallbackError(error); });
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (python_error& error) {  // An exception of Python in autograd.
      error.restore();
    } catch (torch::PyTorchError& error) {
      PyErr_SetString(error.python_type(), error.what());
    } catch (const Error& error) {
      PyErr_SetString(class_of(error), error.what());
    } catch (const c10::Error& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
    }
  });
}

}  // namespace lockstep::python
