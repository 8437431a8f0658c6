// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/missing_gradient_check.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/zero/sharding.h"

namespace lockstep::internal {
namespace {

constexpr int64_t kManySteps = 100;

/// Returns the optimizer's parameters that require gradients, full ones also under ZeRO.
std::vector<at::Tensor> trained_parameters(const Optimizer& optimizer) {
  std::vector<at::Tensor> trained =
      optimizer.is_sharded() ? optimizer.sharding()->parameters() : optimizer.parameters();
  std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  return trained;
}

bool has_gradients(const Optimizer& optimizer, const std::vector<at::Tensor>& trained) {
  return optimizer.is_sharded()
             ? optimizer.sharding()->has_gradients()
             : std::any_of(trained.begin(), trained.end(), [](const at::Tensor& parameter) {
                 return parameter.grad().defined();
               });
}

}  // namespace

void MissingGradientCheck::loss_given(const GivenLoss& given) {
  is_expected_ = is_expected_ || given.loss.requires_grad();
}

void MissingGradientCheck::gradients_complete(const Optimizer& optimizer) {
  if (!objects_.has_optimizer(optimizer)) {
    return;  // Forgotten by free_memory().
  }
  GradientHistory& history = histories_[&optimizer.inner()];
  if (history.had_gradients || !is_expected_) {
    return;
  }
  const std::vector<at::Tensor> trained = trained_parameters(optimizer);
  if (has_gradients(optimizer, trained)) {
    history.had_gradients = any_had_gradients_ = true;
    return;
  }
  if (trained.empty()) {
    return;
  }
  ++history.without_gradient;
  if (any_had_gradients_) {
    if (history.without_gradient == kManySteps) {
      log_warning(fmt::format(
          "an optimizer of {} parameters has found no gradient in its first {} steps, while other "
          "optimizers have; check that it was constructed with the parameters of a trained model",
          trained.size(),
          kManySteps));
    }
    return;
  }
  // The gradients may be those of another optimizer, whose step comes after this one.
  if (history.without_gradient > 1 || objects_.optimizers.size() == 1) {
    throw ConfigError(
        "optimizer",
        fmt::format(
            "step() has nothing to do: none of this optimizer's {} parameters has a gradient after "
            "backward; make the optimizer from the parameters of the model whose loss is passed to "
            "backward, and call zero_grad() after step() or before backward, not between them",
            trained.size()));
  }
}

void MissingGradientCheck::objects_forgotten() {
  histories_.clear();
  is_expected_ = any_had_gradients_ = false;
}

}  // namespace lockstep::internal
