// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::launcher {

/// Implements `lockstep node`: the launcher of one host, started by another launcher. Reads its
/// NodeSpec from kNodeSpecVariable if mpirun or srun has started it, else as the first line of
/// stdin, which then carries orders (see ControlChannel). Returns as run_job() does.
int run_node();

}  // namespace lockstep::launcher
