// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/finite_guard.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/sum.h>

#include "lockstep/accelerator/step/optimizer.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep::internal {

FiniteGuard::FiniteGuard(NonFinitePolicy policy, bool scaled, Group group)
    : policy_(policy), scaled_(scaled), group_(std::move(group)) {}

void FiniteGuard::model_given(const NamedTensors& parameters) {
  if (policy_ == NonFinitePolicy::kIgnore || scaled_) {
    return;
  }
  Watch watch;
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& item : parameters) {
    if (item.tensor.requires_grad()) {
      watch.parameters.push_back(item);
      tensors.push_back(item.tensor);
    }
  }
  watch.hooks = std::make_unique<BackwardHooks>(
      tensors, [findings = findings_, named = watch.parameters](size_t index) {
        const at::Tensor& gradient = named[index].tensor.grad();
        if (findings->bad_parameter.empty() && gradient.defined() &&
            !std::isfinite(at::sum(gradient.detach()).item<double>())) {
          findings->bad_parameter = named[index].name;
        }
      });
  watches_.push_back(std::move(watch));
}

void FiniteGuard::loss_given(const GivenLoss& given) {
  if (policy_ == NonFinitePolicy::kIgnore) {
    return;
  }
  checked_ = false;
  findings_->bad_loss |= !std::isfinite(given.loss.detach().item<double>());
}

void FiniteGuard::check_gradient(const at::Tensor& gradient, const std::string& what) {
  if (policy_ == NonFinitePolicy::kIgnore) {
    return;
  }
  checked_ = false;
  if (findings_->bad_parameter.empty() &&
      !std::isfinite(at::sum(gradient.detach()).item<double>())) {
    findings_->bad_parameter = what;
  }
}

bool FiniteGuard::may_update(int64_t step) {
  if (policy_ == NonFinitePolicy::kIgnore) {
    return true;
  }
  // Several optimizers take their step after one backward, and must all do the same.
  if (checked_) {
    return all_finite_;
  }
  std::string own;
  if (findings_->bad_loss) {
    own = "the loss";
  }
  if (!findings_->bad_parameter.empty()) {
    own += (own.empty() ? "" : " and ") + ("the gradient of " + findings_->bad_parameter);
  }
  *findings_ = {};
  std::vector<std::string> found;
  const std::vector<std::string> all =
      group_.size() == 1 ? std::vector<std::string>{own} : all_gather_bytes(group_, own);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) {
      found.push_back(fmt::format("{} on rank {}", all[rank], rank));
    }
  }
  checked_ = true;
  all_finite_ = found.empty();
  if (all_finite_) {
    return true;
  }
  const std::string what =
      fmt::format("in step {} {} became NaN or infinite", step + 1, fmt::join(found, "; "));
  if (policy_ == NonFinitePolicy::kStop) {
    throw Error(
        "optimizer", what + "; lower the learning rate, clip gradients, or check that step's data");
  }
  log_warning(what + "; the update is skipped");
  return false;
}

nlohmann::json FiniteGuard::state() const {
  if (!findings_->bad_loss && findings_->bad_parameter.empty()) {
    return nullptr;
  }
  return {{"loss", findings_->bad_loss}, {"parameter", findings_->bad_parameter}};
}

void FiniteGuard::load_state(const nlohmann::json& state) {
  *findings_ = {};
  checked_ = false;
  if (!state.is_null()) {
    findings_->bad_loss = state.at("loss").get<bool>();
    findings_->bad_parameter = state.at("parameter").get<std::string>();
  }
}

void FiniteGuard::before_closure() {
  if (policy_ != NonFinitePolicy::kIgnore) {
    throw ConfigError(
        "optimizer",
        "step(closure) cannot be combined with a NonFinitePolicy: the closure computes gradients "
        "after the check; use step()");
  }
}

void FiniteGuard::overflowed_unscaled(const Optimizer& optimizer) {
  if (policy_ == NonFinitePolicy::kIgnore) {
    return;
  }
  const std::vector<at::Tensor> parameters = optimizer.parameters();
  size_t bad = 0;
  for (; bad < parameters.size(); ++bad) {
    const at::Tensor& gradient = parameters[bad].grad();
    if (gradient.defined() && !std::isfinite(at::sum(gradient.detach()).item<double>())) {
      break;
    }
  }
  const std::string what = fmt::format(
      "in step {} gradients overflowed though the loss scale has fallen to 1{}; compute in bf16, "
      "or find the layer that diverges",
      optimizer.steps() + 1,
      bad < parameters.size() ? fmt::format(" (the optimizer's parameter {} on this rank)", bad)
                              : "");
  if (policy_ == NonFinitePolicy::kStop) {
    throw Error("optimizer", what);
  }
  log_warning(what + "; the update is skipped");
}

void FiniteGuard::objects_forgotten() {
  watches_.clear();
  findings_ = std::make_shared<Findings>();
  checked_ = false;
  all_finite_ = true;
}

}  // namespace lockstep::internal
