// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/checkpoint/checkpoint_options.h"

#include <nlohmann/json.hpp>

namespace lockstep {

CheckpointTag::CheckpointTag(double number) : text_(nlohmann::json(number).dump()) {}

}  // namespace lockstep
