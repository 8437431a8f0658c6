// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

/// Cutting a list of layers into the chunks of a pipeline, and computing micro-batches with them.
namespace lockstep::pipeline {

/// The places where a list of layers is cut: chunk c has the layers from [c] to before [c + 1]. It
/// has one number more than there are chunks, as DeepSpeed's `parts`.
using Bounds = std::vector<size_t>;

// Each function is pure and thread-safe. Each chunk gets at least one layer. Each throws
// ConfigError for fewer layers than chunks, and for no chunk.

/// Gives each chunk as many layers as the others; the first chunks get one more if they do not
/// divide. DeepSpeed's partition_method "uniform".
Bounds cut_uniformly(size_t layers, size_t chunks);

/// Makes the sum of the costs of the most expensive chunk as small as possible; among those cuts,
/// the sum of the squares. DeepSpeed's partition_method "parameters", with the layers' numbers of
/// parameters, and the way to cut by measured times.
///
/// Throws ConfigError for a cost that is negative or not finite. Cost: O(chunks * layers^2).
Bounds cut_by_cost(const std::vector<double>& costs, size_t chunks);

/// Gives each chunk as many layers as the others, but counts only those whose class name contains a
/// match of `pattern`, a regular expression of ECMAScript that ignores case. DeepSpeed's
/// partition_method "type:REGEX".
///
/// Throws ConfigError for an invalid pattern, and for fewer matching layers than chunks.
Bounds cut_by_class(
    const std::vector<std::string>& class_names, const std::string& pattern, size_t chunks);

/// Cuts before each of the layers `starts`, which begin the second and later chunks.
///
/// Throws ConfigError unless they ascend from at least 1 to at most `layers` - 1, one fewer than
/// there are chunks.
Bounds cut_at(const std::vector<size_t>& starts, size_t layers, size_t chunks);

}  // namespace lockstep::pipeline
