// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Returns the mean cross entropy of scores of which each rank of `group` has some of the words:
/// the result of an output layer of TensorStyle::kColwise. The full scores exist on no rank.
///
///   at::Tensor loss = vocabulary_parallel_cross_entropy(
///       head(x).flatten(0, 1), next.flatten(), accelerator.mesh().tensor);
///
/// `scores`: (N, words / ranks), of floating point. `targets`: (N), int64, equal on all ranks;
/// rows with `ignore_index` do not count. The result and its gradient equal those of
/// at::cross_entropy_loss on the full scores; in a group of one it is that function. With 16-bit
/// scores it computes in float32.
///
/// Cost: two all_reduces, of N and 2 N numbers, instead of N * words. Keeps the probabilities for
/// backward, which communicates nothing. Collective. Throws ConfigError for other shapes, and for
/// targets that are no words. Modelled on Megatron-LM's vocab_parallel_cross_entropy.
at::Tensor vocabulary_parallel_cross_entropy(
    const at::Tensor& scores,
    const at::Tensor& targets,
    const Group& group,
    int64_t ignore_index = -100);

}  // namespace lockstep
