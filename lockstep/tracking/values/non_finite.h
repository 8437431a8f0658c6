// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::tracking {

/// Returns "NaN", "Infinity" or "-Infinity", for formats with finite numbers only.
const char* name_of_non_finite(double value);

}  // namespace lockstep::tracking
