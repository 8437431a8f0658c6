// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tracking/values/non_finite.h"

#include <cmath>

namespace lockstep::tracking {

const char* name_of_non_finite(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  return value > 0 ? "Infinity" : "-Infinity";
}

}  // namespace lockstep::tracking
