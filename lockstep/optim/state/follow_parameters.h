// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

/// Moves the state of `optimizer` to the current device of its parameters. Optimizers of
/// lockstep::optim lay out their buffers again. Supports all of those, and torch::optim's SGD,
/// Adam, AdamW, Adagrad and RMSprop. Throws ConfigError for any other that already has state.
void follow_parameters(torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
