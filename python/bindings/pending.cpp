// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/transport/ordered_worker.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {
namespace {

using Clock = std::chrono::steady_clock;
using Future = c10::ivalue::Future;
using Tensors = std::vector<at::Tensor>;

// An operation that takes longer is completed by a thread, which costs about as much.
constexpr std::chrono::microseconds kPollTime{40};

/// Returns the memory of a contiguous tensor with one dimension.
at::Tensor flat(const at::Tensor& tensor) {
  return (tensor.requires_grad() ? tensor.detach() : tensor).view({-1});
}

/// Fails a future that its thread has dropped.
struct Completion {
  explicit Completion(c10::intrusive_ptr<Future> pending) : future(std::move(pending)) {}
  ~Completion() {
    if (!future->completed()) {
      future->setError(std::make_exception_ptr(
          CommError("wait", "the group was destroyed before the operation was done")));
    }
  }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  c10::intrusive_ptr<Future> future;
};

void complete(Future& future, std::vector<Pending>& pendings, const Tensors& value) {
  try {
    for (Pending& pending : pendings) {
      pending.wait();
    }
  } catch (...) {
    future.setError(std::current_exception());
    return;
  }
  future.markCompleted(value);
}

/// Completes futures of a group's operations, on threads if they are not done soon. Those of one
/// lane that take longer complete in order, on one thread. Thread-safe with the GIL.
class FutureThreads {
 public:
  /// Returns a future with `value` that completes when all `pendings` are done.
  std::shared_ptr<torch::jit::PythonFutureWrapper> future(
      std::vector<Pending> pendings, Tensors value, int64_t lane) {
    auto result = c10::make_intrusive<Future>(c10::ListType::ofTensors());
    if (soon_done(pendings)) {
      const py::gil_scoped_release released;
      complete(*result, pendings, value);
    } else {
      lanes_[lane].submit(
          "wait",
          [completion = std::make_shared<Completion>(result),
           pendings = std::move(pendings),
           value = std::move(value)]() mutable { complete(*completion->future, pendings, value); });
    }
    return std::make_shared<torch::jit::PythonFutureWrapper>(std::move(result));
  }

 private:
  static bool soon_done(const std::vector<Pending>& pendings) {
    const py::gil_scoped_release released;
    const auto end = Clock::now() + kPollTime;
    bool done = false;
    do {
      done = true;
      for (const Pending& pending : pendings) {
        done = done && pending.done();
      }
    } while (!done && Clock::now() < end);
    return done;
  }

  std::map<int64_t, comm::OrderedWorker> lanes_;
};

}  // namespace

void bind_pending(py::module_& module) {
  py::class_<Pending>(module, "Pending", DestroyedWithoutGil())
      .def("done", &Pending::done, NoGil())
      .def(
          "result", [](Pending& pending) { return pending.wait(); }, NoGil())
      .def(
          "wait",
          [](Pending& pending, std::optional<int64_t> timeout_ms) {
            RECORD_FUNCTION("lockstep:wait", std::vector<c10::IValue>{});
            timeout_ms ? pending.wait(comm::Milliseconds(*timeout_ms)) : pending.wait();
          },
          py::arg("timeout_ms") = std::nullopt,
          NoGil());
  py::class_<FutureThreads>(module, "FutureThreads", DestroyedWithoutGil())
      .def(py::init<>())
      .def(
          "future",
          &FutureThreads::future,
          py::arg("pendings"),
          py::arg("value"),
          py::arg("lane") = 0);
}

// Profilers show the start and the wait of an operation, which may do its work in both.
void bind_starts(py::class_<Group>& bound) {
  bound
      .def(
          "start_all_reduce",
          [](Group& group, const at::Tensor& tensor, ReduceOp op) {
            RECORD_FUNCTION("lockstep:all_reduce", std::vector<c10::IValue>{tensor});
            return group.all_reduce(flat(tensor), op);
          },
          py::arg("tensor"),
          py::arg("op"),
          NoGil())
      .def(
          "start_reduce_scatter",
          [](Group& group, const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
            RECORD_FUNCTION("lockstep:reduce_scatter", std::vector<c10::IValue>{input});
            return group.reduce_scatter_into(flat(output), flat(input), op);
          },
          py::arg("output"),
          py::arg("input"),
          py::arg("op"),
          NoGil())
      .def(
          "start_all_gather",
          [](Group& group, const at::Tensor& output, const at::Tensor& input) {
            RECORD_FUNCTION("lockstep:all_gather", std::vector<c10::IValue>{input});
            return group.all_gather_into(flat(output), flat(input));
          },
          py::arg("output"),
          py::arg("input"),
          NoGil())
      .def(
          "start_all_to_all",
          [](Group& group, const at::Tensor& output, const at::Tensor& input) {
            RECORD_FUNCTION("lockstep:all_to_all", std::vector<c10::IValue>{input});
            return group.all_to_all_into(flat(output), flat(input));
          },
          py::arg("output"),
          py::arg("input"),
          NoGil())
      .def(
          "start_broadcast",
          [](Group& group, const at::Tensor& tensor, int root) {
            RECORD_FUNCTION("lockstep:broadcast", std::vector<c10::IValue>{tensor});
            return group.broadcast(flat(tensor), root);
          },
          py::arg("tensor"),
          py::arg("root"),
          NoGil())
      .def(
          "start_gather",
          [](Group& group, const at::Tensor& input, int root) {
            RECORD_FUNCTION("lockstep:gather", std::vector<c10::IValue>{input});
            return group.gather(flat(input), root);
          },
          py::arg("input"),
          py::arg("root"),
          NoGil())
      .def(
          "start_scatter",
          [](Group& group, const at::Tensor& output, const at::Tensor& input, int root) {
            RECORD_FUNCTION("lockstep:scatter", std::vector<c10::IValue>{output});
            return group.scatter(flat(output), flat(input), root);
          },
          py::arg("output"),
          py::arg("input"),
          py::arg("root"),
          NoGil())
      .def(
          "start_send",
          [](Group& group, const at::Tensor& tensor, int peer, int tag) {
            RECORD_FUNCTION("lockstep:send", std::vector<c10::IValue>{tensor});
            return group.send(flat(tensor), peer, tag);
          },
          py::arg("tensor"),
          py::arg("peer"),
          py::arg("tag"),
          NoGil())
      .def(
          "start_recv",
          [](Group& group, const at::Tensor& tensor, int peer, int tag) {
            RECORD_FUNCTION("lockstep:recv", std::vector<c10::IValue>{tensor});
            return group.recv(flat(tensor), peer, tag);
          },
          py::arg("tensor"),
          py::arg("peer"),
          py::arg("tag"),
          NoGil())
      .def("sender_of_next", &Group::sender_of_next, py::arg("tag"), NoGil())
      .def(
          "await_sender",
          [](Group& group, int tag, int64_t limit_ms) {
            return group.await_sender(tag, comm::Milliseconds(limit_ms));
          },
          py::arg("tag"),
          py::arg("limit_ms"),
          NoGil())
      .def(
          "start_barrier",
          [](Group& group) {
            RECORD_FUNCTION("lockstep:barrier", std::vector<c10::IValue>{});
            return group.start_barrier();
          },
          NoGil());
}

}  // namespace lockstep::python
