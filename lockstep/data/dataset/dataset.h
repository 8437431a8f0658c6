// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

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

/// A dataset that knows single samples only. collated() of collate.h makes a Dataset of it; what is
/// asked of `get` is what is asked of `get_batch`.
template <typename D>
concept SampleDataset = std::movable<D> && requires(const D& dataset, int64_t index) {
  { dataset.size() } -> std::convertible_to<int64_t>;
  { dataset.get(index) } -> std::movable;
};

namespace iterable {

template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <typename D>
using Stream = std::remove_cvref_t<decltype(std::declval<const D&>().stream(int64_t{0}))>;

}  // namespace iterable

/// A dataset that can only be read from its beginning: `stream(epoch)` returns a callable that
/// returns one sample after another, and nothing at the end.
///
///   struct Lines {
///     std::string path;
///     auto stream(int64_t /*epoch*/) const {
///       return [in = std::make_shared<std::ifstream>(path)]() -> std::optional<std::string> {
///         std::string line;
///         return std::getline(*in, line) ? std::optional(line) : std::nullopt;
///       };
///     }
///   };
///
/// Every rank must see the same samples in the same order in an epoch: it keeps its share and drops
/// the rest (or rank 0 reads for all; see ShardSpec::dispatch_batches). A stream is opened, called
/// and destroyed by one thread at a time, with gradients off. Samples are copyable, tensors' way: a
/// few of them are handed out twice. A `size() const`, where there is one, tells the number of
/// samples of every epoch. A `collate(std::vector<Sample>) const` makes the batches;
/// default_collate does where there is none.
template <typename D>
concept IterableDataset = std::movable<D> &&
    requires(const D& dataset, int64_t epoch, iterable::Stream<D>& stream) {
  dataset.stream(epoch);
  requires iterable::kIsOptional<decltype(stream())>;
};

template <IterableDataset D>
using SampleOf = typename decltype(std::declval<iterable::Stream<D>&>()())::value_type;

/// Knows how many samples it has.
template <typename D>
concept SizedDataset = requires(const D& dataset) {
  { dataset.size() } -> std::convertible_to<int64_t>;
};

}  // namespace lockstep::data
