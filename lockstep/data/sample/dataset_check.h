// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "lockstep/data/sample/dataset.h"

namespace lockstep::data {

/// Replaces a dataset that a static_assert refused, so that the compiler reports no further error.
struct RefusedDataset {};

/// The reason why a Loader cannot read a type.
enum class DatasetProblem : uint8_t {
  kNone,
  kTorchDataset,
  kNoRead,
  kReadNotConst,
  kNoSize,
  kSizeNotConst,
  kNoBatchType,
  kNotCollated,
  kOther
};

namespace dataset_check {

template <typename D>
concept FromTorch = requires {
  typename D::BatchRequestType;
  typename D::BatchType;
  D::is_stateful;
};
template <typename D>
concept ReadsSamples = requires(D& dataset) {
  dataset.get(int64_t{0});
};
template <typename D>
concept ReadsBatches = requires(D& dataset, std::span<const int64_t> indices) {
  dataset.get_batch(indices);
};
template <typename D>
concept Streams = requires(D& dataset) {
  dataset.stream(int64_t{0});
};
template <typename D>
concept Reads = ReadsSamples<D> || ReadsBatches<D> || Streams<D>;
template <typename D>
concept HasSize = requires(D& dataset) {
  dataset.size();
};

}  // namespace dataset_check

template <typename D>
consteval DatasetProblem problem_of_dataset() {
  using namespace dataset_check;
  if (Dataset<D> || IterableDataset<D> || std::is_same_v<D, RefusedDataset>) {
    return DatasetProblem::kNone;
  }
  if (FromTorch<D>) {
    return DatasetProblem::kTorchDataset;
  }
  if (!Reads<const D>) {
    return Reads<D> ? DatasetProblem::kReadNotConst : DatasetProblem::kNoRead;
  }
  if (!Streams<const D> && !HasSize<const D>) {
    return HasSize<D> ? DatasetProblem::kSizeNotConst : DatasetProblem::kNoSize;
  }
  if (ReadsBatches<const D>) {
    return DatasetProblem::kNoBatchType;
  }
  return SampleDataset<D> ? DatasetProblem::kNotCollated : DatasetProblem::kOther;
}

/// Refuses a dataset with `problem` by a static_assert of one line.
template <DatasetProblem problem>
consteval void explain_dataset_problem() {
  using enum DatasetProblem;
  static_assert(
      problem != kTorchDataset,
      "this is a dataset of torch::data; wrap it: Loader(data::from_torch(dataset))");
  static_assert(
      problem != kNoRead,
      "a dataset has get(int64_t index) const, or get_batch(std::span<const int64_t> indices) "
      "const, or stream(int64_t epoch) const; this type has none of them");
  static_assert(
      problem != kReadNotConst,
      "get, get_batch or stream of this dataset must be const: several workers call it at once");
  static_assert(problem != kNoSize, "this dataset has no size(); add int64_t size() const to it");
  static_assert(problem != kSizeNotConst, "size() of this dataset must be const");
  static_assert(
      problem != kNoBatchType,
      "get_batch of this dataset must return the type Batch; add using Batch = ... to it");
  static_assert(
      problem != kNotCollated,
      "this dataset has get(index) for single samples; make batches of them: "
      "Loader(data::collated(dataset))");
  static_assert(
      problem != kOther,
      "this type is not a dataset: size() must return int64_t, get(index) a value, stream(epoch) a "
      "callable that returns a std::optional; and it must be movable");
}

}  // namespace lockstep::data
