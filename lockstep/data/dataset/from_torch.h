// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/ArrayRef.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/example.h>
#include <torch/data/transforms/base.h>

#include "lockstep/data/sample/dataset_check.h"
#include "lockstep/data/sample/sample_random.h"

namespace lockstep::data {

/// torch's Example with fields that a Loader can move to a device and send to another rank.
template <typename Data, typename Target>
struct TorchExample : torch::data::Example<Data, Target> {
  auto lockstep_fields() { return std::tie(this->data, this->target); }
  auto lockstep_fields() const { return std::tie(this->data, this->target); }
};
template <typename Data>
struct TorchExample<Data, void> : torch::data::Example<Data, void> {
  auto lockstep_fields() { return std::tie(this->data); }
  auto lockstep_fields() const { return std::tie(this->data); }
};

namespace torch_data {

template <typename T>
T adapted(T value) {
  return value;
}
template <typename Data, typename Target>
TorchExample<Data, Target> adapted(torch::data::Example<Data, Target> example) {
  return {std::move(example)};
}
template <typename T>
auto adapted(std::vector<T> values) {
  std::vector<decltype(adapted(std::declval<T>()))> all;
  all.reserve(values.size());
  for (T& value : values) {
    all.push_back(adapted(std::move(value)));
  }
  return all;
}

/// Returns the number of samples. Throws ConfigError if it is unset.
int64_t require_size(std::optional<size_t> size);

// Match torch's default loops over single samples, which a derived class may replace.
template <typename Self, typename E>
void is_loop(std::vector<E> (torch::data::datasets::Dataset<Self, E>::*)(c10::ArrayRef<size_t>));
template <typename In, typename Out>
void is_loop(std::vector<Out> (torch::data::transforms::Transform<In, Out>::*)(std::vector<In>));

/// True if get_batch is torch's default loop over get().
template <typename D>
concept ReadsBySample = requires(D& dataset) {
  torch_data::is_loop(&D::get_batch);
  dataset.get(size_t{0});
};

/// True if apply_batch is torch's default loop over apply().
template <typename T>
concept AppliesBySample = requires(T& transform, typename T::InputType input) {
  torch_data::is_loop(&T::apply_batch);
  transform.apply(std::move(input));
};

/// Reads batches of a dataset. Reads sample by sample where torch does, so that each sample has
/// separate random numbers.
template <typename D>
class Reader {
 public:
  static constexpr bool kBySample = ReadsBySample<D>;
  explicit Reader(D dataset) : dataset_(std::move(dataset)) {}
  auto sample(size_t index) { return dataset_.get(index); }
  typename D::BatchType batch(const std::vector<size_t>& indices) {
    return dataset_.get_batch(indices);
  }

 private:
  D dataset_;
};

template <typename Source, typename T>
requires std::copy_constructible<Source>
class Reader<torch::data::datasets::MapDataset<Source, T>> {
 public:
  using D = torch::data::datasets::MapDataset<Source, T>;
  static constexpr bool kBySample = Reader<Source>::kBySample && AppliesBySample<T>;
  explicit Reader(D dataset) : source_(dataset.dataset()), transform_(dataset.transform()) {}
  auto sample(size_t index) { return transform_.apply(source_.sample(index)); }
  typename D::BatchType batch(const std::vector<size_t>& indices) {
    return transform_.apply_batch(read_batch(source_, indices));
  }

 private:
  Reader<Source> source_;
  T transform_;
};

template <typename R>
auto read_batch(R& reader, const std::vector<size_t>& indices) {
  if constexpr (R::kBySample) {
    std::vector<decltype(reader.sample(size_t{0}))> samples;
    samples.reserve(indices.size());
    for (const size_t index : indices) {
      begin_sample(static_cast<int64_t>(index));
      samples.push_back(reader.sample(index));
    }
    end_samples();
    return samples;
  } else {
    return reader.batch(indices);
  }
}

/// Gives every thread a separate reader, as torch's DataLoader copies a dataset for each worker.
/// A reader that cannot be copied serves one thread at a time. Thread-safe.
template <typename R>
class ReaderPool {
 public:
  explicit ReaderPool(R reader) : first_(std::move(reader)) {}

  template <typename Use>
  auto with_reader(const Use& use) {
    if constexpr (std::copy_constructible<R>) {
      std::unique_ptr<R> reader = take();
      auto result = use(*reader);
      const std::scoped_lock lock(mutex_);
      idle_.push_back(std::move(reader));
      return result;
    } else {
      const std::scoped_lock lock(mutex_);
      return use(first_);
    }
  }

 private:
  std::unique_ptr<R> take() {
    const std::scoped_lock lock(mutex_);
    if (idle_.empty()) {
      return std::make_unique<R>(first_);
    }
    std::unique_ptr<R> reader = std::move(idle_.back());
    idle_.pop_back();
    return reader;
  }

  std::mutex mutex_;
  R first_;  ///< If readers can be copied: only the source of copies, never read from.
  std::vector<std::unique_ptr<R>> idle_;
};

template <typename D>
concept Indexed = dataset_check::FromTorch<D> && !D::is_stateful &&
                  std::is_same_v<typename D::BatchRequestType, c10::ArrayRef<size_t>>;

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;

template <typename D>
concept Stateful = dataset_check::FromTorch<D> && D::is_stateful && requires(D& dataset) {
  requires std::is_same_v<typename D::BatchRequestType, size_t>;
  requires kIsVector<typename D::BatchType::value_type>;
  dataset.reset();
};

}  // namespace torch_data

/// Adapts a stateless torch dataset to Dataset; see from_torch(). Copies share their readers.
template <torch_data::Indexed D>
class TorchDataset {
  using Reader = torch_data::Reader<D>;

 public:
  using Batch = decltype(torch_data::adapted(std::declval<typename D::BatchType>()));

  explicit TorchDataset(D dataset)
      : size_(torch_data::require_size(dataset.size())),
        readers_(std::make_shared<torch_data::ReaderPool<Reader>>(Reader(std::move(dataset)))) {}

  int64_t size() const { return size_; }
  Batch get_batch(std::span<const int64_t> indices) const {
    const std::vector<size_t> request(indices.begin(), indices.end());
    return readers_->with_reader([&](Reader& reader) {
      return torch_data::adapted(torch_data::read_batch(reader, request));
    });
  }
  /// Returns one sample, so that collated() can take this dataset.
  auto get(int64_t index) const requires Reader::kBySample {
    return readers_->with_reader([&](Reader& reader) {
      return torch_data::adapted(reader.sample(static_cast<size_t>(index)));
    });
  }

 private:
  int64_t size_;
  std::shared_ptr<torch_data::ReaderPool<Reader>> readers_;
};

/// Adapts a stateful torch dataset to IterableDataset; see from_torch(). Copies share the dataset.
template <torch_data::Stateful D>
class TorchStream {
 public:
  using Samples = decltype(torch_data::adapted(std::declval<typename D::BatchType::value_type>()));
  using Sample = typename Samples::value_type;

  TorchStream(D dataset, size_t request)
      : dataset_(std::make_shared<D>(std::move(dataset))), request_(request) {}

  auto stream(int64_t /*epoch*/) const {
    dataset_->reset();
    return [dataset = dataset_,
            request = request_,
            samples = Samples(),
            next = size_t{0}]() mutable -> std::optional<Sample> {
      while (next == samples.size()) {
        auto more = dataset->get_batch(request);
        if (!more) {
          return std::nullopt;
        }
        samples = torch_data::adapted(*std::move(more));
        next = 0;
      }
      return std::move(samples[next++]);
    };
  }

 private:
  std::shared_ptr<D> dataset_;
  size_t request_;
};

/// Adapts a torch::data dataset for a Loader: `Loader(from_torch(dataset), {...})`.
///
/// - A stateless dataset (torch's Dataset, BatchDataset, MapDataset, shared ones) becomes a
///   Dataset with the batches of torch's DataLoader. With `.map(Stack<>())` a batch is an example
///   of tensors, else a vector of examples. collated(from_torch(dataset)) stacks any kind of
///   sample.
/// - Random numbers in `get` and in transforms of single samples depend only on seed, epoch and
///   sample. Those of a custom `get_batch` depend on the samples of the batch.
/// - Each worker reads from a copy, as with torch. A dataset that cannot be copied is read by one
///   worker at a time. State that `get` changes stays in that copy and is in no checkpoint.
/// - A stateful dataset that yields vectors of examples becomes an IterableDataset. Every pass
///   begins with reset(). After reset() it must yield the same examples on every rank and in a
///   resumed job. `request` is the number of examples per read: a ChunkDataset's batch_size.
///
/// Throws ConfigError if a stateless dataset has no size.
template <typename D>
auto from_torch(D dataset, [[maybe_unused]] size_t request = 1) {
  if constexpr (torch_data::Indexed<D>) {
    return TorchDataset<D>(std::move(dataset));
  } else if constexpr (torch_data::Stateful<D>) {
    return TorchStream<D>(std::move(dataset), request);
  } else {
    static_assert(
        dataset_check::FromTorch<D>,
        "from_torch takes datasets of torch::data::datasets; pass your own dataset to the Loader "
        "directly");
    static_assert(
        !dataset_check::FromTorch<D>,
        "from_torch takes datasets that are read by index, and stateful datasets that yield "
        "vectors of examples and end; omit .map(Stack<>()) of a stateful dataset: the Loader "
        "stacks");
    return RefusedDataset();
  }
}

}  // namespace lockstep::data
