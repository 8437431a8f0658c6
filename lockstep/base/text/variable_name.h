// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace lockstep {

/// Returns whether `name` is a valid environment variable name: letters, digits and _, the first
/// not a digit.
bool is_variable_name(std::string_view name);

/// Returns whether ranks must not inherit the variable.
///
/// These are the rank variables of other launchers (OMPI_*, PMI_*, PMIX_*, MPI_LOCAL*, MV2_*,
/// SLURM_PROCID, SLURM_LOCALID), and variables that a launcher sets or reads for itself.
bool is_launcher_variable(std::string_view name);

/// Returns whether a user may not set the variable for all ranks.
///
/// These are the variables above, and those that `lockstep launch` sets for each rank, including
/// torchrun's TORCHELASTIC_*. OMP_NUM_THREADS may be set.
bool is_set_by_launcher(std::string_view name);

}  // namespace lockstep
