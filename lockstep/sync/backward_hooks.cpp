// SPDX-License-Identifier: Apache-2.0
#include "lockstep/sync/backward_hooks.h"

#include <cstdint>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/base/callback.h"
#include "lockstep/comm/call_scope.h"

namespace lockstep {
namespace {

/// Runs a callback of autograd. It may have a thread of its own, which knows nothing of the
/// program's call.
template <typename Body>
void run_in_backward(const Body& body) {
  const comm::CallScope call("backward");
  run_callback(body);
}

class GradientHook final : public torch::autograd::FunctionPostHook {
 public:
  GradientHook(std::shared_ptr<std::function<void(size_t)>> on_gradient, size_t index)
      : on_gradient_(std::move(on_gradient)), index_(index) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    run_in_backward([this] { (*on_gradient_)(index_); });
    return outputs;
  }

 private:
  std::shared_ptr<std::function<void(size_t)>> on_gradient_;
  size_t index_;
};

/// torch cannot remove such a hook, so it refers to its function weakly.
class BeforeHook final : public torch::autograd::FunctionPreHook {
 public:
  BeforeHook(std::weak_ptr<std::function<void(size_t)>> before_gradient, size_t index)
      : before_gradient_(std::move(before_gradient)), index_(index) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    if (const auto before = before_gradient_.lock()) {
      run_in_backward([&] { (*before)(index_); });
    }
    return gradients;
  }

 private:
  std::weak_ptr<std::function<void(size_t)>> before_gradient_;
  size_t index_;
};

// A shared_ptr up to torch 2.12, an intrusive_ptr from 2.13 on.
using Accumulator =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

}  // namespace

struct BackwardHooks::State {
  struct Hooked {
    Accumulator node;  // Held: a tensor refers to its accumulator only weakly.
    uintptr_t key;
  };
  std::vector<Hooked> hooked;
  std::shared_ptr<std::function<void(size_t)>> before_gradient;  ///< Null without.
};

BackwardHooks::BackwardHooks(
    const std::vector<at::Tensor>& tensors,
    std::function<void(size_t)> on_gradient,
    std::function<void(size_t)> before_gradient)
    : state_(std::make_unique<State>()) {
  const auto shared = std::make_shared<std::function<void(size_t)>>(std::move(on_gradient));
  if (before_gradient) {
    state_->before_gradient =
        std::make_shared<std::function<void(size_t)>>(std::move(before_gradient));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    Accumulator node = torch::autograd::impl::grad_accumulator(tensors[i]);
    if (state_->before_gradient) {
      node->add_pre_hook(std::make_unique<BeforeHook>(state_->before_gradient, i));
    }
    const uintptr_t key = node->add_post_hook(std::make_unique<GradientHook>(shared, i));
    state_->hooked.push_back({std::move(node), key});
  }
}

BackwardHooks::~BackwardHooks() {
  for (State::Hooked& hooked : state_->hooked) {
    hooked.node->del_post_hook(hooked.key);
  }
}

int BackwardHooks::current_backward() {
  return torch::autograd::get_current_graph_task_id();
}

void BackwardHooks::at_end_of_backward(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [callback = std::move(callback)] { run_in_backward(callback); });
}

}  // namespace lockstep
