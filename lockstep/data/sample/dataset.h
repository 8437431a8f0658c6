// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace lockstep::data {

/// A dataset that a Loader can read: `size()` samples, any of which can form a batch of type
/// `Batch`.
///
/// Thread safety: `get_batch` must be thread-safe; several threads call it with gradients off.
/// An exception of `get_batch` reaches the loop at the batch that failed. Tensor operations inside
/// may start OpenMP threads in parallel with those of the model; gather_rows of rows.h does not.
template <typename D>
concept Dataset = std::movable<D> && requires(const D& dataset, std::span<const int64_t> indices) {
  typename D::Batch;
  { dataset.size() } -> std::convertible_to<int64_t>;
  { dataset.get_batch(indices) } -> std::same_as<typename D::Batch>;
};

/// A dataset that returns single samples. collated() of collate.h makes a Dataset of it. `get` must
/// be thread-safe, as Dataset::get_batch.
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

/// A dataset that is read from its beginning. `stream(epoch)` returns a callable that returns the
/// next sample, or nullopt at the end.
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
/// Every rank must see the same samples in the same order in an epoch. Each rank keeps its share
/// and drops the rest, or rank 0 reads for all (see ShardSpec::dispatch_batches).
/// One thread at a time opens, calls and destroys a stream, with gradients off. Samples must be
/// copyable, and copies may share memory, as tensors do: a few samples are returned twice.
/// Optional: `size() const` is the number of samples of every epoch.
/// Optional: `collate(std::vector<Sample>) const` builds the batches; the default is
/// default_collate.
template <typename D>
concept IterableDataset = std::movable<D> &&
    requires(const D& dataset, int64_t epoch, iterable::Stream<D>& stream) {
  dataset.stream(epoch);
  requires iterable::kIsOptional<decltype(stream())>;
};

template <IterableDataset D>
using SampleOf = typename decltype(std::declval<iterable::Stream<D>&>()())::value_type;

/// A dataset that knows its number of samples.
template <typename D>
concept SizedDataset = requires(const D& dataset) {
  { dataset.size() } -> std::convertible_to<int64_t>;
};

}  // namespace lockstep::data
