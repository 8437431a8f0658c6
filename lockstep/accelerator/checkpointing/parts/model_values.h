// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::internal {

/// Returns parameters and buffers, each tensor once even if it has several names.
NamedTensors without_ties(NamedTensors parameters, const NamedTensors& buffers);

/// Checks that `saved` has the names, shapes and dtypes of `current`; fp32 may become fp16 or bf16,
/// with a warning. Unless `strict`, names in only one of them are skipped, with a warning.
std::function<void()> check_model(
    const NamedTensors& current, NamedTensors saved, const std::string& path, bool strict = true);

/// Returns, by name, the sum over several ranks' saved tensors times `factor`. Integer tensors must
/// be equal, or the first rank's is taken. A tensor that some ranks lack counts as zero there.
NamedTensors sum_of(const std::vector<NamedTensors>& ranks, double factor);
/// Returns the mean over the ranks that have it; exact if all are equal.
NamedTensors mean_of(const std::vector<NamedTensors>& ranks);

}  // namespace lockstep::internal
