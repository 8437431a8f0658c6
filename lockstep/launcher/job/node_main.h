// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::launcher {

/// `lockstep node`: the launcher of one host, as another one has started it. Reads its NodeSpec
/// from kNodeSpecVariable, where mpirun or srun says which node this is, else as the first line of
/// stdin, which then goes on with orders (see Outside). Returns as run_job() does.
int run_node();

}  // namespace lockstep::launcher
