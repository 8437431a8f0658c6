// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/named_tensor.h"
#include "lockstep/zero/shard_store.h"

namespace lockstep::zero {

/// The trainable ones of `all`, by the optimizer `groups` that update them; those of one group in
/// their order in `all`. ConfigError for one that no group has, and for a trainable one of a group
/// that is not in `all`. Thread safety: safe, as all here.
std::vector<NamedTensors> by_group(
    const NamedTensors& all, const std::vector<std::vector<at::Tensor>>& groups);

/// What stage 3 divides besides: floating point parameters of more than `keep_up_to_elements` that
/// nothing trains. Each once, whatever names it has.
NamedTensors divided_though_frozen(const NamedTensors& all, int64_t keep_up_to_elements);

/// Those of at most `elements` elements that are trained, and updated in another dtype than their
/// own.
NamedTensors with_masters(
    const NamedTensors& all, int64_t elements, const SixteenBits& sixteen_bits);

/// Those of `first`, then those of `second`.
NamedTensors joined(NamedTensors first, const NamedTensors& second);

}  // namespace lockstep::zero
