// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::storage {

/// Returns the error for a folder with a checkpoint of DeepSpeed. That is a tag's folder, which has
/// `*_model_states.pt`, or the folder of tags above, whose `latest` names one. The error contains
/// the command that converts the weights to files that load_checkpoint_in_model reads. Empty for
/// any other folder, and for one with a manifest. Checks names only: no pickle is opened.
std::optional<CheckpointError> deepspeed_checkpoint(const std::filesystem::path& folder);

/// Lists the folders in `folder` that hold a checkpoint, of Lockstep or of DeepSpeed: the tags
/// of a save_dir, global_step5 before global_step10. Empty if it cannot be listed.
std::vector<std::string> checkpoint_tags(const std::filesystem::path& folder);

}  // namespace lockstep::storage
