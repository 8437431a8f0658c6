// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

namespace lockstep::data {

/// What a Loader can read: `size()` samples, any of which it can put together in a batch of type
/// `Batch`.
///
/// Thread safety asked for: `get_batch` is called from several threads at once, with gradients off.
/// What it throws reaches the loop, at the batch it failed for. Tensor operations inside may start
/// OpenMP threads beside those of the model; gather_rows of rows.h does not.
template <typename D>
concept Dataset = std::movable<D> && requires(const D& dataset, std::span<const int64_t> indices) {
  typename D::Batch;
  { dataset.size() } -> std::convertible_to<int64_t>;
  { dataset.get_batch(indices) } -> std::same_as<typename D::Batch>;
};

}  // namespace lockstep::data
