// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

/// What schedules that cycle momentum set: the first of an optimizer's betas (and the second, if
/// given), or else its momentum, of one parameter group. Works on ours and on torch::optim's.
/// ConfigError for an optimizer that has neither, and for a capturable one.
void set_momentum(
    torch::optim::Optimizer& optimizer,
    size_t group,
    double momentum,
    std::optional<double> beta2 = std::nullopt);

/// Whether every parameter group has betas: what DeepSpeed asks of an optimizer before its OneCycle
/// cycles them. Muon's has two kinds of groups, and counts as one without.
bool has_betas(torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
