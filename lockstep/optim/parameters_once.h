// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

/// Removes repeated parameters from each parameter group; the first entry stays.
///
/// C++'s `Module::parameters()` lists a tied weight once for each of its names, and torch::optim
/// would update it once for each entry. Python's `parameters()` lists it once. Throws ConfigError
/// for a parameter in two groups. Local. Cost: one pass over the parameters.
void list_parameters_once(torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
