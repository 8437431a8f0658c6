// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/loss_watch.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/full.h>

#include "lockstep/base/log.h"
#include "lockstep/comm/byte_collectives.h"

namespace lockstep::internal {
namespace {

const char* const kLossRemedy =
    "lower the learning rate or clip gradients; AcceleratorOptions::non_finite = "
    "NonFinitePolicy::kStop ends the run at that step, kSkip skips its update";

}  // namespace

void LossWatch::loss_given(const GivenLoss& given) {
  if (!enabled_) {
    return;
  }
  note(given.loss);
  if (has_report() && group_.size() == 1) {
    exchange_reports();
  }
}

void LossWatch::note(const at::Tensor& loss) {
  ++noted_;
  if (!loss.is_cpu()) {
    last_on_device_ = loss.detach();
    has_last_on_cpu_ = false;
    return;
  }
  last_ = loss.item<double>();
  has_last_on_cpu_ = true;
  if (first_not_finite_ == 0 && !std::isfinite(last_.load())) {
    first_not_finite_ = noted_;
    first_value_ = std::isnan(last_.load()) ? std::abs(last_.load()) : last_.load();
  }
}

std::string LossWatch::report() const {
  return first_not_finite_ == 0
             ? ""
             : fmt::format("the loss of backward {} is {}", first_not_finite_, first_value_);
}

void LossWatch::exchange_reports() {
  is_reported_ = true;
  std::vector<std::string> found;
  if (group_.size() == 1) {
    found.push_back(report());
  } else {
    const std::vector<std::string> all = all_gather_bytes(group_, report());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].empty()) {
        found.push_back(fmt::format("on rank {} {}", rank, all[rank]));
      }
    }
  }
  log_warning(fmt::format("{}; {}", fmt::join(found, ", "), kLossRemedy));
}

void LossWatch::warn_at_end() {
  if (last_on_device_.defined()) {
    last_ = std::exchange(last_on_device_, {}).item<double>();
  }
  double not_finite = std::isfinite(last_.load()) ? 0 : 1;
  if (group_.size() > 1) {
    not_finite = group_.all_reduce(at::full({1}, not_finite, at::kDouble), ReduceOp::kMax)
                     .wait()
                     .item<double>();
  }
  if (not_finite > 0) {
    const std::string since =
        first_not_finite_ > 0 ? fmt::format(", first in backward {}", first_not_finite_) : "";
    log_warning(fmt::format(
        "the training ends with a loss that is NaN or infinite{}, so the weights are unusable; {}",
        since,
        kLossRemedy));
  }
}

}  // namespace lockstep::internal
