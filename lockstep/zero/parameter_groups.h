// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/zero/shard_store.h"

namespace lockstep::zero {

/// The trainable ones of `all`, by the optimizer `groups` that update them; those of one group in
/// their order in `all`. ConfigError for one that no group has, and for a trainable one of a group
/// that is not in `all`, unless it has no elements. Thread safety: safe, as all here.
std::vector<NamedTensors> by_group(
    const NamedTensors& all, const std::vector<std::vector<at::Tensor>>& groups);

/// Those of `all` that stage 3 leaves whole: each of at most `up_to` elements, trained or not, in
/// their order, for which there is room left among `in_all`. The same ones as DeepSpeed 0.19's
/// mark_persistent_parameters.
std::set<const at::TensorImpl*> persistent_parameters(
    const NamedTensors& all, int64_t up_to, int64_t in_all);

/// What stage 3 divides besides: floating point parameters that nothing trains, and that are not
/// among `kept`. Each once, whatever names it has.
NamedTensors sharded_though_frozen(
    const NamedTensors& all, const std::set<const at::TensorImpl*>& kept);

/// Those that are trained, and updated in another dtype than their own.
NamedTensors with_masters(const NamedTensors& all, const LowPrecisionPolicy& low_precision_policy);

/// Those of `first`, then those of `second`.
NamedTensors joined(NamedTensors first, const NamedTensors& second);

}  // namespace lockstep::zero
