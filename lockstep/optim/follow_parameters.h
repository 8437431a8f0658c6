// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

/// Takes the state of `optimizer` to where its parameters have been moved since it was made. One of
/// lockstep::optim lays them out anew there. For all of those, and torch::optim's SGD, Adam, AdamW,
/// Adagrad and RMSprop; ConfigError for any other that has state already.
void follow_parameters(torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
