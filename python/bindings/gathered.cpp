// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/gathered.h"

#include <optional>
#include <utility>

#include <c10/core/GradMode.h>

#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"
#include "lockstep/zero/coordinator/param_coordinator.h"
#include "lockstep/zero/sharding.h"

namespace lockstep::python {
namespace {

/// The block of zero.Init: tensors that this thread creates are sharded until `end()`.
class ZeroInitScope {
 public:
  explicit ZeroInitScope(std::shared_ptr<void> scope) : scope_(std::move(scope)) {}
  void end() { scope_.reset(); }

 private:
  std::shared_ptr<void> scope_;
};

/// The block of zero.GatheredParameters: keeps parameters unsharded until `end()`. An Accelerator
/// is needed only for parameters that it has prepared. Not thread-safe.
class GatheredScope {
 public:
  GatheredScope(
      std::vector<at::Tensor> parameters, bool writes, const Group& group, Accelerator* accelerator)
      : parameters_(std::move(parameters)), group_(group), accelerator_(accelerator) {
    zero::Sharding* const sharding =
        accelerator == nullptr
            ? nullptr
            : internal::AcceleratorInternals::objects(*accelerator).sharding.get();
    exact_.emplace(sharding == nullptr ? nullptr : sharding->coordinator());
    gathered_.emplace(parameters_, writes);
  }

  /// Reshards. With `modifier_rank` all ranks first get the values of that rank. Collective.
  void end(std::optional<int> modifier_rank) {
    if (modifier_rank) {
      const c10::AutoGradMode no_grad(false);
      for (const at::Tensor& parameter : parameters_) {
        // By way of a plain tensor, since transports read tensors through pointers.
        at::Tensor values = parameter.detach().clone(at::MemoryFormat::Contiguous);
        group_.broadcast(values, *modifier_rank).wait();
        parameter.detach().copy_(values);
      }
    }
    gathered_.reset();
    exact_.reset();
    if (modifier_rank && accelerator_ != nullptr) {
      internal::AcceleratorInternals::step(*accelerator_)
          .notify(&internal::TrainingStepObserver::equal_changes_made);
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  Group group_;
  Accelerator* accelerator_;
  std::optional<zero::ExactValues> exact_;
  std::optional<zero::Gathered> gathered_;
};

}  // namespace

void transfer_zero_init(
    Accelerator& accelerator,
    const std::vector<std::shared_ptr<internal::ZeroInit>>& zero_inits,
    const internal::GivenModel& model) {
  if (zero_inits.empty()) {
    return;
  }
  std::vector<at::Tensor> tensors = tensors_of(model.parameters());
  const std::vector<at::Tensor> buffers = tensors_of(model.buffers());
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  zero::Sharding* const sharding =
      internal::AcceleratorInternals::objects(accelerator).sharding.get();
  for (const auto& zero_init : zero_inits) {
    zero_init->unshard(tensors);
    if (sharding != nullptr) {
      zero_init->transfer_to(*sharding);
    }
  }
}

void bind_gathered(py::module_& module) {
  py::class_<ZeroInitScope>(module, "ZeroInitScope").def("end", &ZeroInitScope::end);
  py::class_<internal::ZeroInit, std::shared_ptr<internal::ZeroInit>>(
      module, "ZeroInit", DestroyedWithoutGil())
      .def(py::init([](const Group& group, const at::Device& device) {
        return std::make_shared<internal::ZeroInit>(group, device);
      }))
      .def("begin", [](internal::ZeroInit& self) { return ZeroInitScope(self.begin()); })
      // Ends the block: shards `tensors`, too, and drops shards that nothing refers to.
      .def(
          "finish",
          [](internal::ZeroInit& self, const std::vector<at::Tensor>& tensors) {
            NamedTensors named;
            for (const at::Tensor& tensor : tensors) {
              named.push_back({"", tensor});
            }
            self.finish(named, nullptr);
          },
          NoGil())
      .def("unshard", &internal::ZeroInit::unshard, NoGil());
  py::class_<GatheredScope>(module, "GatheredScope")
      .def(
          py::init([](std::vector<at::Tensor> parameters,
                      bool writes,
                      const Group& group,
                      Accelerator* accelerator) {
            const py::gil_scoped_release no_gil;
            return std::make_unique<GatheredScope>(
                std::move(parameters), writes, group, accelerator);
          }),
          py::arg("parameters"),
          py::arg("writes"),
          py::arg("group"),
          py::arg("accelerator").none(true),
          py::keep_alive<1, 5>())
      .def("end", &GatheredScope::end, NoGil());
}

}  // namespace lockstep::python
