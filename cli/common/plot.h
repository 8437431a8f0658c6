// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::cli {

/// Draws a curve in characters; each line ends with a newline. The largest and smallest value are
/// at the left, the first and last index below. Each of `width` columns (without labels) spans the
/// smallest to largest value of its chunk, so that no peak is lost; fewer values than columns have
/// one column each. `values` must not be empty, and all must be finite.
std::string render_plot(const std::vector<double>& values, size_t width, size_t height);

}  // namespace lockstep::cli
