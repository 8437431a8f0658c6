// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/values/histogram.h"
#include "lockstep/tracking/values/images.h"

namespace lockstep {

/// Converts tensors to what trackers store. `images` have the shape [N, C, H, W], [C, H, W] or
/// [H, W] with 1, 3 or 4 channels; bytes, or floating-point numbers from 0 to 1. Numbers outside
/// are clamped, and NaN is 0. Throws ConfigError, naming the tensor, for another shape or dtype.
tracking::ImageBatches image_batches(const std::map<std::string, at::Tensor>& images);

/// Counts the elements of tensors of any shape, on any device, of a real dtype. Costs a copy in
/// float64. Throws ConfigError, naming the tensor, for an empty or a complex one.
tracking::Histograms histograms(const std::map<std::string, at::Tensor>& values);

}  // namespace lockstep
