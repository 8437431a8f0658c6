// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/zero/bucket/low_precision_policy.h"

namespace lockstep::zero {

/// Returns the trainable parameters of each optimizer group, in their order in `all`. Throws
/// ConfigError for a trainable parameter without a group, and for a parameter of a group that is
/// not in `all`, unless it has no elements. All functions here are thread-safe.
std::vector<NamedTensors> by_group(
    const NamedTensors& all, const std::vector<std::vector<at::Tensor>>& groups);

/// Returns the parameters that stage 3 does not shard, trained or not. Each has at most `up_to`
/// elements; in order, they have up to `in_all` elements together. Modelled on DeepSpeed 0.19's
/// mark_persistent_parameters.
std::set<const at::TensorImpl*> persistent_parameters(
    const NamedTensors& all, int64_t up_to, int64_t in_all);

/// Returns the frozen floating-point parameters that stage 3 shards: those not in `kept`. A
/// parameter with several names is returned once.
NamedTensors frozen_to_shard(const NamedTensors& all, const std::set<const at::TensorImpl*>& kept);

/// Returns the trained parameters that are updated in another dtype than their own.
NamedTensors with_masters(const NamedTensors& all, const LowPrecisionPolicy& low_precision_policy);

/// Concatenates the lists.
NamedTensors concatenated(NamedTensors first, const NamedTensors& second);

}  // namespace lockstep::zero
