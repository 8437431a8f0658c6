// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/loop/finite_guard.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/sum.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep {

FiniteGuard::FiniteGuard(NonFinitePolicy policy, Group group)
    : policy_(policy), group_(std::move(group)) {}

void FiniteGuard::watch(const NamedTensors& parameters) {
  if (policy_ == NonFinitePolicy::kIgnore) {
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
      tensors, [seen = seen_, named = watch.parameters](size_t index) {
        const at::Tensor& gradient = named[index].tensor.grad();
        if (seen->bad_parameter.empty() && gradient.defined() &&
            !std::isfinite(at::sum(gradient.detach()).item<double>())) {
          seen->bad_parameter = named[index].name;
        }
      });
  watches_.push_back(std::move(watch));
}

void FiniteGuard::look_at_loss(const at::Tensor& loss) {
  if (policy_ == NonFinitePolicy::kIgnore) {
    return;
  }
  judged_ = false;
  seen_->bad_loss |= !std::isfinite(loss.detach().item<double>());
}

bool FiniteGuard::may_step(int64_t step) {
  if (policy_ == NonFinitePolicy::kIgnore) {
    return true;
  }
  // Several optimizers take their step after one backward, and must all do the same.
  if (judged_) {
    return verdict_;
  }
  std::string mine;
  if (seen_->bad_loss) {
    mine = "the loss";
  }
  if (!seen_->bad_parameter.empty()) {
    mine += (mine.empty() ? "" : " and ") + ("the gradient of " + seen_->bad_parameter);
  }
  *seen_ = {};
  std::vector<std::string> found;
  const std::vector<std::string> all =
      group_.size() == 1 ? std::vector<std::string>{mine} : all_gather_bytes(group_, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) {
      found.push_back(fmt::format("{} on rank {}", all[rank], rank));
    }
  }
  judged_ = true;
  verdict_ = found.empty();
  if (verdict_) {
    return true;
  }
  const std::string what =
      fmt::format("in step {} {} became NaN or infinite", step + 1, fmt::join(found, "; "));
  if (policy_ == NonFinitePolicy::kStop) {
    throw Error(
        "optimizer",
        what + "; lower the learning rate, clip gradients, or look at that step's data");
  }
  log_warning(what + "; the update is left out");
  return false;
}

nlohmann::json FiniteGuard::state() const {
  if (!seen_->bad_loss && seen_->bad_parameter.empty()) {
    return nullptr;
  }
  return {{"loss", seen_->bad_loss}, {"parameter", seen_->bad_parameter}};
}

void FiniteGuard::load_state(const nlohmann::json& state) {
  *seen_ = {};
  judged_ = false;
  if (!state.is_null()) {
    seen_->bad_loss = state.at("loss").get<bool>();
    seen_->bad_parameter = state.at("parameter").get<std::string>();
  }
}

void FiniteGuard::overflowed_unscaled(
    const std::vector<at::Tensor>& parameters, int64_t step) const {
  size_t bad = 0;
  for (; bad < parameters.size(); ++bad) {
    const at::Tensor& gradient = parameters[bad].grad();
    if (gradient.defined() && !std::isfinite(at::sum(gradient.detach()).item<double>())) {
      break;
    }
  }
  const std::string what = fmt::format(
      "in step {} gradients overflowed though the loss scale has fallen to 1{}; compute in bf16, "
      "or look for what diverged",
      step + 1,
      bad < parameters.size() ? fmt::format(" (the optimizer's parameter {} on this rank)", bad)
                              : "");
  if (policy_ == NonFinitePolicy::kStop) {
    throw Error("optimizer", what);
  }
  log_warning(what + "; the update is left out");
}

}  // namespace lockstep
