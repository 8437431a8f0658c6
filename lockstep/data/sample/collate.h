// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/data/sample/dataset.h"
#include "lockstep/data/sample/dataset_check.h"
#include "lockstep/data/sample/nested.h"
#include "lockstep/data/sample/sample_random.h"

namespace lockstep::data {

namespace collating {

/// Calls at::stack. Throws ConfigError with the shapes if tensors differ in shape or dtype.
at::Tensor stack(const std::vector<at::Tensor>& samples);
at::Tensor numbers(const std::vector<double>& samples, at::ScalarType type);
at::Tensor numbers(const std::vector<int64_t>& samples, at::ScalarType type);
/// Throws ConfigError: the samples have different structures, which `what` describes.
[[noreturn]] void refuse(const char* what);

template <typename T>
inline constexpr bool kIsPair = false;
template <typename A, typename B>
inline constexpr bool kIsPair<std::pair<A, B>> = true;
template <typename T>
inline constexpr bool kIsArray = false;
template <typename T, size_t N>
inline constexpr bool kIsArray<std::array<T, N>> = true;

/// Returns get(sample) for each sample.
template <typename T, typename Get>
auto column(const std::vector<T>& samples, const Get& get) {
  std::vector<std::remove_cvref_t<decltype(get(samples.front()))>> values;
  values.reserve(samples.size());
  for (const T& sample : samples) {
    values.push_back(get(sample));
  }
  return values;
}

}  // namespace collating

/// Builds one batch from at least one sample, field by field, like torch's default_collate:
///
/// - tensors of one shape are stacked along a new dimension 0; tensors of different shapes need a
///   collate function (pad_sequences of pad.h);
/// - integers become an int64 tensor [B], bools a bool, floats a float32, doubles a float64 one;
/// - strings become a vector of strings;
/// - vectors and arrays of n elements become n batches; maps, pairs, tuples and optionals become
///   the same container of batches; sizes, keys and presence must be the same in all samples;
/// - a struct with LOCKSTEP_FIELDS becomes the same struct of batches if its fields are tensors,
///   else the tuple of its fields' batches.
///
/// Throws ConfigError if the samples differ in structure.
template <typename T>
auto default_collate(const std::vector<T>& samples) {
  using collating::column;
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return collating::stack(samples);
  } else if constexpr (std::is_floating_point_v<T>) {
    return collating::numbers(
        std::vector<double>(samples.begin(), samples.end()),
        sizeof(T) == sizeof(float) ? at::kFloat : at::kDouble);
  } else if constexpr (std::is_integral_v<T>) {
    return collating::numbers(
        std::vector<int64_t>(samples.begin(), samples.end()),
        std::is_same_v<T, bool> ? at::kBool : at::kLong);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return samples;
  } else if constexpr (nested::Kind<T>::kSequence) {
    const auto element = [&](size_t i) {
      return default_collate(
          column(samples, [i](const T& sample) -> typename T::value_type { return sample[i]; }));
    };
    if constexpr (collating::kIsArray<T>) {
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return std::array<decltype(element(0)), sizeof...(I)>{element(I)...};
      }
      (std::make_index_sequence<std::tuple_size_v<T>>());
    } else {
      const size_t size = samples.front().size();
      for (const T& sample : samples) {
        if (sample.size() != size) {
          collating::refuse("lists of different lengths");
        }
      }
      std::vector<decltype(element(0))> batches;
      for (size_t i = 0; i < size; ++i) {
        batches.push_back(element(i));
      }
      return batches;
    }
  } else if constexpr (nested::Kind<T>::kMap) {
    const auto value = [&](const typename T::key_type& key) {
      return default_collate(column(
          samples, [&](const T& sample) -> typename T::mapped_type { return sample.at(key); }));
    };
    std::map<typename T::key_type, decltype(value(samples.front().begin()->first))> batches;
    for (const T& sample : samples) {
      const bool same = sample.size() == samples.front().size() &&
                        std::equal(
                            sample.begin(),
                            sample.end(),
                            samples.front().begin(),
                            [](const auto& a, const auto& b) { return a.first == b.first; });
      if (!same) {
        collating::refuse("maps of different keys");
      }
    }
    for (const auto& item : samples.front()) {
      batches.emplace(item.first, value(item.first));
    }
    return batches;
  } else if constexpr (nested::Kind<T>::kOptional) {
    const bool present = samples.front().has_value();
    for (const T& sample : samples) {
      if (sample.has_value() != present) {
        collating::refuse("optionals, some with and some without a value");
      }
    }
    const auto values = [&] {
      return default_collate(
          column(samples, [](const T& sample) -> typename T::value_type { return *sample; }));
    };
    return present ? std::optional<decltype(values())>(values()) : std::nullopt;
  } else if constexpr (nested::Kind<T>::kTuple) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      const auto field = [&]<size_t J>(std::integral_constant<size_t, J>) {
        return default_collate(
            column(samples, [](const T& sample) -> std::remove_cvref_t<std::tuple_element_t<J, T>> {
              return std::get<J>(sample);
            }));
      };
      if constexpr (collating::kIsPair<T>) {
        return std::make_pair(field(std::integral_constant<size_t, I>())...);
      } else {
        return std::make_tuple(field(std::integral_constant<size_t, I>())...);
      }
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (StructOfFields<T>) {
    const auto values = []<typename... F>(const std::tuple<const F&...>& fields) {
      return std::tuple<F...>(fields);
    };
    using Fields = decltype(values(std::declval<const T&>().lockstep_fields()));
    auto batches = default_collate(column(
        samples, [&](const T& sample) -> Fields { return values(sample.lockstep_fields()); }));
    if constexpr (std::is_same_v<decltype(batches), Fields>) {
      T batch;
      batch.lockstep_fields() = std::move(batches);
      return batch;
    } else {
      return batches;
    }
  } else {
    static_assert(
        !sizeof(T),
        "default_collate knows tensors, numbers, strings, standard containers of them and structs "
        "with LOCKSTEP_FIELDS; give collated(dataset, collate) a function for this sample type");
  }
}

/// A function object that calls default_collate.
struct DefaultCollate {
  template <typename T>
  auto operator()(std::vector<T> samples) const {
    return default_collate(samples);
  }
};

/// A dataset of samples combined with a collate function. A Dataset if samples can be read in any
/// order, else an IterableDataset. See collated().
template <typename D, typename Collate>
class Collated;

template <SampleDataset D, typename Collate>
class Collated<D, Collate> {
 public:
  using Sample = std::remove_cvref_t<decltype(std::declval<const D&>().get(int64_t{0}))>;
  using Batch = std::remove_cvref_t<decltype(std::declval<const Collate&>()(
      std::declval<std::vector<Sample>>()))>;

  Collated(D dataset, Collate collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {}
  int64_t size() const { return dataset_.size(); }
  Batch get_batch(std::span<const int64_t> indices) const {
    std::vector<Sample> samples;
    samples.reserve(indices.size());
    for (const int64_t index : indices) {
      begin_sample(index);
      samples.push_back(dataset_.get(index));
    }
    end_samples();
    return collate_(std::move(samples));
  }
  const D& dataset() const { return dataset_; }

 private:
  D dataset_;
  Collate collate_;
};

template <IterableDataset D, typename Collate>
class Collated<D, Collate> {
 public:
  Collated(D dataset, Collate collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {}
  auto stream(int64_t epoch) const { return dataset_.stream(epoch); }
  int64_t size() const requires SizedDataset<D> { return dataset_.size(); }
  auto collate(std::vector<SampleOf<D>> samples) const { return collate_(std::move(samples)); }
  const D& dataset() const { return dataset_; }

 private:
  D dataset_;
  Collate collate_;
};

/// Combines a dataset with a collate function:
/// `Loader(collated(sentences, [](std::vector<at::Tensor> s) { return pad_sequences(s); }))`.
/// `collate` takes a std::vector of samples and returns a batch. It must be const and thread-safe.
template <typename D, typename Collate = DefaultCollate>
auto collated(D dataset, Collate collate = {}) {
  if constexpr (SampleDataset<D> || IterableDataset<D>) {
    return Collated<D, Collate>(std::move(dataset), std::move(collate));
  } else {
    constexpr DatasetProblem kProblem = problem_of_dataset<D>();
    explain_dataset_problem<kProblem>();
    static_assert(
        kProblem != DatasetProblem::kNone,
        "this dataset makes batches itself; give it to the Loader without collated()");
    return RefusedDataset();
  }
}

/// Builds one batch with the dataset's collate(), or with default_collate if it has none.
template <IterableDataset D>
auto collate_samples(const D& dataset, std::vector<SampleOf<D>> samples) {
  if constexpr (requires { dataset.collate(std::move(samples)); }) {
    return dataset.collate(std::move(samples));
  } else {
    return default_collate(samples);
  }
}

}  // namespace lockstep::data
