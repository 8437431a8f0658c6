// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::cli {

/// A curve in characters, each line with its newline: the largest and the smallest value stand at
/// the left, the first and the last index below. Each of `width` columns, labels not counted, shows
/// its stretch of the values from the smallest to the largest, so that no peak is lost; fewer
/// values than columns have one column each. `values` holds at least one, all finite.
std::string render_plot(const std::vector<double>& values, size_t width, size_t height);

}  // namespace lockstep::cli
