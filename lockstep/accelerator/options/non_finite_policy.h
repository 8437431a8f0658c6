// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

/// The reaction to losses and gradients that are NaN or infinite.
enum class NonFinitePolicy {
  kIgnore,  ///< No check, no reaction.
  kSkip,    ///< Skip the update, on every process, with a warning.
  kStop     ///< Throw on every process.
};

}  // namespace lockstep
