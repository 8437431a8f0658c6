// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/setup/run_context.h"

namespace lockstep::internal {

/// Returns the mesh of the options with the sizes that it leaves open. `shards`: models are
/// sharded. Throws ConfigError for a mesh that the job cannot have.
MeshShape configured_mesh(const RunContext& context, bool shards);

/// Throws ConfigError for options that the mesh excludes. Adds to ZeRO's options what dp_replicate
/// means for them. `zero`: null without ZeRO.
void apply_mesh(const MeshShape& shape, AcceleratorOptions& options, ZeroPlugin* zero);

/// Throws ConfigError on all processes unless each tp line is on one host. Collective.
void expect_tensor_lines_on_hosts(const RunContext& context, const MeshShape& shape);

}  // namespace lockstep::internal
