// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

/// Sets the momentum of one parameter group, for schedules that cycle it. Sets the first of its
/// betas (and the second, if given), else its momentum. Works on lockstep::optim's and
/// torch::optim's optimizers. Throws ConfigError for an optimizer without betas and momentum, and
/// for a capturable one.
void set_momentum(
    torch::optim::Optimizer& optimizer,
    size_t group,
    double momentum,
    std::optional<double> beta2 = std::nullopt);

/// Returns whether every parameter group has betas, DeepSpeed's condition for OneCycle to cycle
/// them. False for Muon, which has two kinds of groups.
bool has_betas(torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
