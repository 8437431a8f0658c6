// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "lockstep/accelerator/training_state/checkpointable.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/reader.h"
#include "lockstep/optim/state/optimizer_state.h"

namespace lockstep::internal {

/// Saves an optimizer whose class has state_dict() and load_state_dict(): its tensors as
/// `<stem>.safetensors`, and {"type": "custom", "state": its values} as `<stem>.json`.
void add_own_optimizer(
    checkpoint::Contents& contents, const std::string& stem, const AnyCheckpointable& optimizer);

/// Reads such an optimizer, and returns a function that calls load_state_dict(). Throws
/// CheckpointError if another kind of optimizer was saved.
std::function<void()> check_own_optimizer(
    const AnyCheckpointable& optimizer, const checkpoint::Reader& reader, const std::string& stem);

/// Throws ConfigError, in the name of `where`, for an optimizer whose state cannot be read: of an
/// unknown class without state_dict(). `need` is the reason: "this run has a project_dir".
void expect_readable_state(
    torch::optim::Optimizer& optimizer, const std::string& where, const std::string& need);

}  // namespace lockstep::internal
