// SPDX-License-Identifier: Apache-2.0
#include "lockstep/zero/activation/activation_checkpoint.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/tensor/attention_interceptor.h"
#include "lockstep/zero/activation/activation_checkpointing.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor random_state_of(const at::Generator& generator) {
  at::Generator copy = generator;
  const std::lock_guard<std::mutex> lock(copy.mutex());
  return copy.get_state();
}

/// The state of this thread and device that a computation depends on besides its inputs.
class ComputationContext {
 public:
  explicit ComputationContext(std::optional<at::Device> device) {
    generators_.push_back(at::globalContext().defaultGenerator(at::kCPU));
    if (device && !device->is_cpu()) {
      generators_.push_back(at::globalContext().defaultGenerator(*device));
      devices_.push_back(device->type());
    }
    devices_.push_back(at::kCPU);
    for (const at::Generator& generator : generators_) {
      random_.push_back(random_state_of(generator));
    }
    for (const at::DeviceType type : devices_) {
      autocast_.push_back(
          {at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
    }
    cache_ = at::autocast::is_autocast_cache_enabled();
  }

  void restore() {
    for (size_t i = 0; i < generators_.size(); ++i) {
      const std::lock_guard<std::mutex> lock(generators_[i].mutex());
      generators_[i].set_state(random_[i]);
    }
    for (size_t i = 0; i < devices_.size(); ++i) {
      at::autocast::set_autocast_enabled(devices_[i], autocast_[i].enabled);
      at::autocast::set_autocast_dtype(devices_[i], autocast_[i].dtype);
    }
    at::autocast::set_autocast_cache_enabled(cache_);
  }

 private:
  struct Autocast {
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> random_;
  std::vector<at::DeviceType> devices_;
  std::vector<Autocast> autocast_;
  bool cache_ = true;
};

/// RAII scope: its end restores the ComputationContext of its begin.
class RestoreOnExit {
 public:
  explicit RestoreOnExit(std::optional<at::Device> device) : before_(device) {
    at::autocast::increment_nesting();
  }
  ~RestoreOnExit() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    before_.restore();
  }
  RestoreOnExit(const RestoreOnExit&) = delete;
  RestoreOnExit& operator=(const RestoreOnExit&) = delete;

 private:
  ComputationContext before_;
};

struct Call {
  CheckpointedForward forward;
  size_t inputs = 0;
  std::vector<at::Tensor> parameters;
  std::optional<at::Device> device;
  std::optional<ComputationContext> computation;
  std::shared_ptr<comm::AttentionInterceptor> attention;  ///< Null: none.
  std::shared_ptr<ActivationCheckpointing> settings;      ///< Null: inputs are kept unchanged.
  KeptInputs kept;
};

/// Runs `work` with the settings' waits and measurements, if the call has settings.
variable_list run_part(
    const Call& call,
    ActivationCheckpointing::Part part,
    const std::function<variable_list()>& work) {
  return call.settings ? call.settings->run(part, call.device, work) : work();
}

struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list forward(
      AutogradContext* context, at::TensorList all, const std::shared_ptr<Call>& call) {
    const std::vector<at::Tensor> inputs(all.begin(), all.begin() + call->inputs);
    context->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(call));
    return run_part(*call, ActivationCheckpointing::Part::kForward, [&] {
      context->save_for_backward(
          call->settings ? call->settings->keep(inputs, call->kept) : inputs);
      return call->forward(inputs);
    });
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (c10::GradMode::is_enabled()) {
      // Gradients of gradients would lack the paths through inputs and parameters of `forward`.
      throw ConfigError(
          "activation_checkpoint",
          "activation_checkpoint does not support gradients of gradients; got a backward with "
          "create_graph, expected one without; run this part of the model without "
          "activation_checkpoint, or take the gradient without create_graph");
    }
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["call"].toCapsule());
    Call& call = *holder->call;
    return run_part(call, ActivationCheckpointing::Part::kBackward, [&] {
      return gradients_of(call, context->get_saved_variables(), gradients);
    });
  }

  /// Returns the gradients of all inputs of `forward` below.
  static variable_list gradients_of(
      Call& call, const variable_list& saved, const variable_list& gradients) {
    const variable_list inputs = call.kept.restored(saved);
    variable_list wanted;
    std::ranges::copy_if(inputs, std::back_inserter(wanted), [](const at::Tensor& input) {
      return input.defined() && input.requires_grad();
    });
    const size_t wanted_inputs = wanted.size();
    wanted.insert(wanted.end(), call.parameters.begin(), call.parameters.end());
    variable_list outputs;
    {
      const RestoreOnExit restore(call.device);
      const ActivationCheckpointing::Scope plain(nullptr);
      call.computation->restore();
      const comm::AttentionInterceptor::Scope attention(call.attention);
      const c10::AutoGradMode grad(true);
      outputs = call.forward(inputs);
    }
    variable_list roots;
    variable_list root_gradients;
    for (size_t i = 0; i < outputs.size() && i < gradients.size(); ++i) {
      if (gradients[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    variable_list found(wanted.size());
    if (!roots.empty()) {
      found = torch::autograd::grad(
          roots,
          wanted,
          root_gradients,
          /*retain_graph=*/std::nullopt,
          /*create_graph=*/false,
          /*allow_unused=*/true);
    }
    variable_list result;
    size_t next = 0;
    for (const at::Tensor& input : inputs) {
      result.push_back(input.defined() && input.requires_grad() ? found[next++] : at::Tensor());
    }
    result.insert(result.end(), found.begin() + static_cast<ptrdiff_t>(wanted_inputs), found.end());
    result.emplace_back();  // `call` has no gradient.
    return result;
  }

  struct Holder final : torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Call> held) : call(std::move(held)) {}
    std::shared_ptr<Call> call;
  };
};

}  // namespace

std::vector<at::Tensor> activation_checkpoint(
    CheckpointedForward forward,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& parameters) {
  if (!c10::GradMode::is_enabled()) {
    return forward(inputs);
  }
  auto call = std::make_shared<Call>();
  call->forward = std::move(forward);
  call->inputs = inputs.size();
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) {
      call->parameters.push_back(parameter);
    }
  }
  std::vector<at::Tensor> all = inputs;
  all.insert(all.end(), call->parameters.begin(), call->parameters.end());
  for (const at::Tensor& tensor : all) {
    if (tensor.defined() && !tensor.is_cpu()) {
      call->device = tensor.device();
    }
  }
  call->computation.emplace(call->device);
  call->attention = comm::AttentionInterceptor::current();
  call->settings = ActivationCheckpointing::current();
  return Recompute::apply(at::TensorList(all), call);
}

}  // namespace lockstep
