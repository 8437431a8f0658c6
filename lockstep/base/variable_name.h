// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace lockstep {

/// Whether a program can have an environment variable of that name: letters, digits and _, and no
/// digit first.
bool is_variable_name(std::string_view name);

/// One that says which rank a process is, in the words of another launcher (OMPI_*, PMI_*, PMIX_*,
/// MPI_LOCAL*, MV2_*, SLURM_PROCID, SLURM_LOCALID), or that a launcher of ours has set or read for
/// itself: nothing a rank inherits.
bool is_of_launchers(std::string_view name);

/// What a user may not set for all ranks alike: those, and what `lockstep launch` sets for each
/// rank, torchrun's TORCHELASTIC_* among them. OMP_NUM_THREADS is the user's where it is given.
bool is_set_by_launcher(std::string_view name);

}  // namespace lockstep
