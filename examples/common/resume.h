// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/lockstep.h"

namespace examples {

/// Loads the newest checkpoint of the run if `resume` is true, and prints its path. Collective.
inline void resume_if(bool resume, lockstep::Accelerator& accelerator) {
  if (resume) {
    const auto from = accelerator.resume_latest();
    accelerator.print(
        from ? "resumed from " + from->string()
             : "no checkpoint to resume from; starting from the beginning");
  }
}

}  // namespace examples
