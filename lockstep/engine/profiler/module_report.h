// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/engine/profiler/module_tree.h"

namespace lockstep {

/// Formats "12.50 M", "3.20 G".
std::string short_number(double value);
/// Formats "1.20 GFLOPS"; "-" if it took no time.
std::string flops_rate(double flops, double ms);

/// Lists, at each depth down to `module_depth` (-1: all), the `top_modules` classes with most
/// parameters, MACs and latency; modules of one class and depth are summed. Complete lines.
std::string render_classes(
    const ModuleTree& tree,
    const std::vector<ModuleTree::Cost>& costs,
    int64_t module_depth,
    int64_t top_modules);

/// Lists every module in a line, below its parent: parameters, MACs, latency, each with its share
/// of the model's, and FLOPS. These are unknown for a module without parameters.
std::string render_modules(const ModuleTree& tree, const std::vector<ModuleTree::Cost>& costs);

}  // namespace lockstep
