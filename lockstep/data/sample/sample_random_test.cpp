// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sample/sample_random.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "lockstep/data/loader/loader.h"
#include "lockstep/data/sample/collate.h"

namespace lockstep::data {
namespace {

/// Sample i is [i, two random numbers].
struct Augmented {
  int64_t count;
  int64_t size() const { return count; }
  at::Tensor get(int64_t index) const {
    const at::Tensor number = at::full({1}, index, at::kDouble);
    return at::cat({number, at::dropout(at::rand({1}, at::kDouble) + 1, 0.4, true), noise()});
  }
  static at::Tensor noise() { return at::randn({1}, at::kDouble); }
};

/// The same as a stream.
struct AugmentedStream {
  int64_t count;
  auto stream(int64_t /*epoch*/) const {
    return [*this, next = int64_t{0}]() mutable -> std::optional<at::Tensor> {
      return next < count ? std::optional(Augmented{count}.get(next++)) : std::nullopt;
    };
  }
};

using Samples = std::map<std::pair<int64_t, int64_t>, std::vector<double>>;  ///< By epoch, index.

void add_rows(Samples& samples, int64_t epoch, const at::Tensor& batch) {
  for (int64_t row = 0; row < batch.size(0); ++row) {
    const auto* values = batch[row].const_data_ptr<double>();
    const std::vector<double> sample(values, values + 3);
    const auto [known, is_new] =
        samples.emplace(std::pair(epoch, static_cast<int64_t>(sample[0])), sample);
    EXPECT_TRUE(is_new || known->second == sample);
  }
}

/// Two epochs of all ranks, one after the other, beside a loop that draws numbers itself.
template <typename D>
Samples read_all(const D& dataset, const LoaderOptions& options, int world) {
  Samples samples;
  for (int rank = 0; rank < world; ++rank) {
    Loader loader(dataset, options);
    loader.shard({.rank = rank, .world = world});
    at::manual_seed(1);
    const at::Tensor of_a_loop_alone = at::rand({1000});
    at::manual_seed(1);
    for (int64_t epoch = 0, step = 0; epoch < 2; ++epoch) {
      for (auto& batch : loader) {
        EXPECT_TRUE(at::equal(at::rand({1}), of_a_loop_alone.slice(0, step, step + 1)));
        ++step;
        add_rows(samples, epoch, batch);
      }
    }
  }
  return samples;
}

TEST(SampleRandom, NumbersDependOnSeedEpochAndSampleOnly) {
  const LoaderOptions options{.batch_size = 3, .shuffle = true, .seed = 5, .workers = 0};
  const auto dataset = collated(Augmented{40});
  const Samples expected = read_all(dataset, options, 1);
  ASSERT_EQ(expected.size(), 80U);
  EXPECT_NE(expected.at({0, 7}), expected.at({1, 7}));
  EXPECT_NE(expected.at({0, 7})[2], expected.at({0, 8})[2]);
  for (const int workers : {0, 1, 4}) {
    for (const int prefetch : {0, 7}) {
      for (const int world : {1, 2, 3}) {
        LoaderOptions other = options;
        other.workers = workers;
        other.prefetch_batches = prefetch;
        other.batch_size = 2 + world;
        EXPECT_EQ(read_all(dataset, other, world), expected)
            << workers << " workers, " << prefetch << " ahead, " << world << " ranks";
      }
    }
  }
  LoaderOptions other_seed = options;
  other_seed.seed = 6;
  EXPECT_NE(read_all(dataset, other_seed, 1).at({0, 7}), expected.at({0, 7}));
}

TEST(SampleRandom, AStreamsNumbersDependOnSeedEpochAndPositionOnly) {
  const AugmentedStream stream{20};
  const Samples expected = read_all(stream, {.batch_size = 3, .seed = 5, .workers = 0}, 1);
  EXPECT_NE(expected.at({0, 7}), expected.at({1, 7}));
  EXPECT_EQ(read_all(stream, {.batch_size = 4, .seed = 5, .workers = 1}, 2), expected);
  EXPECT_NE(read_all(stream, {.batch_size = 3, .seed = 6}, 1), expected);
}

TEST(SampleRandom, AResumedPassDrawsTheSameNumbers) {
  const LoaderOptions options{.batch_size = 2, .shuffle = true, .seed = 5, .workers = 2};
  std::vector<at::Tensor> unbroken;
  Loader first(collated(Augmented{20}), options);
  for (auto& batch : first) {
    unbroken.push_back(batch);
  }
  Loader resumed(collated(Augmented{20}), options);
  at::rand({17});  // The process's own generator is in another state.
  resumed.load_cursor({.seed = 5, .epoch = 0, .batches = 6});
  size_t step = 6;
  for (auto& batch : resumed) {
    EXPECT_TRUE(at::equal(batch, unbroken.at(step++)));
  }
  EXPECT_EQ(step, 10U);
}

/// A data set that makes whole batches draws for the batch; and a collate function does.
struct NoisyBatches {
  using Batch = at::Tensor;
  int64_t size() const { return 12; }
  Batch get_batch(std::span<const int64_t> indices) const {
    return at::rand({static_cast<int64_t>(indices.size())});
  }
};

TEST(SampleRandom, NumbersOfABatchDependOnItsSamples) {
  const auto batches = [](const auto& dataset, int workers) {
    std::vector<at::Tensor> all;
    Loader loader(dataset, {.batch_size = 4, .workers = workers});
    for (auto& batch : loader) {
      all.push_back(batch);
    }
    return at::stack(all);
  };
  const auto mixing = collated(Augmented{12}, [](std::vector<at::Tensor> samples) {
    return at::stack(samples) + at::rand({1});
  });
  EXPECT_TRUE(at::equal(batches(NoisyBatches(), 0), batches(NoisyBatches(), 3)));
  EXPECT_TRUE(at::equal(batches(mixing, 0), batches(mixing, 3)));
  const at::Tensor first = batches(NoisyBatches(), 0);
  EXPECT_FALSE(at::equal(first[0], first[1]));
}

/// Draws sample 3 again and again, as a sampler with weights may.
class Often3 final : public Sampler {
 public:
  int64_t size() const override { return 6; }
  std::vector<int64_t> order(int64_t /*epoch*/) const override { return {3, 0, 3, 3, 1, 3}; }
};

TEST(SampleRandom, ARepeatedSampleHasOtherNumbersEachTime) {
  for (const int64_t batch_size : {1, 4, 6}) {
    Loader loader(
        collated(Augmented{5}), {.batch_size = batch_size}, std::make_shared<const Often3>());
    std::set<double> noise;
    for (auto& batch : loader) {
      for (int64_t row = 0; row < batch.size(0); ++row) {
        noise.insert(batch[row][2].template item<double>());
      }
    }
    EXPECT_EQ(noise.size(), 6U);
  }
}

TEST(SampleRandom, SeedsEnginesOfOnesOwn) {
  struct OwnEngine {
    int64_t size() const { return 8; }
    double get(int64_t /*index*/) const {
      std::mt19937_64 engine(random_seed());
      return std::uniform_real_distribution<double>()(engine);
    }
  };
  const auto numbers = [](int workers) {
    Loader loader(collated(OwnEngine()), {.batch_size = 8, .workers = workers});
    return *loader.begin();
  };
  EXPECT_TRUE(at::equal(numbers(0), numbers(1)));
  EXPECT_FALSE(at::equal(numbers(0)[0], numbers(0)[1]));
  at::manual_seed(3);
  const uint64_t outside = random_seed();
  EXPECT_NE(random_seed(), outside);
}

TEST(SampleRandom, AnOperationWithAGeneratorUsesThatOne) {
  const std::vector<int64_t> samples = {1};
  const auto own = [] { return at::rand({3}, at::make_generator<at::CPUGeneratorImpl>(9)); };
  const at::Tensor expected = own();
  const SampleRandomScope scope({}, samples);
  EXPECT_TRUE(at::equal(own(), expected));
}

TEST(SampleRandom, ScopesMayBeNested) {
  const std::vector<int64_t> samples = {1};
  const auto scoped = [&](const std::function<void()>& within) {
    const SampleRandomScope scope({.seed = 2}, samples);
    const at::Tensor first = at::rand({1});
    within();
    return at::cat({first, at::rand({1})});
  };
  const at::Tensor expected = scoped([] {});
  EXPECT_TRUE(at::equal(scoped([&] { scoped([] {}); }), expected));
  EXPECT_EQ(SampleRandomScope::current(), nullptr);
}

using Operation = std::function<at::Tensor()>;

std::map<std::string, Operation> random_operations() {
  static const at::Tensor half = at::full({6, 6}, 0.5);
  static const at::Tensor ones = at::ones({6, 6});
  const auto empty = [] { return at::empty({9}); };
  return {
      {"rand", [] { return at::rand({9}); }},
      {"randn", [] { return at::randn({9}); }},
      {"randint", [] { return at::randint(1 << 20, {9}); }},
      {"randperm", [] { return at::randperm(100); }},
      {"rand_like", [] { return at::rand_like(half); }},
      {"randn_like", [] { return at::randn_like(half); }},
      {"randint_like", [] { return at::randint_like(half, 1 << 20); }},
      {"bernoulli", [] { return at::bernoulli(half); }},
      {"bernoulli_", [=] { return at::empty({99}).bernoulli_(0.5); }},
      {"dropout", [] { return at::dropout(ones, 0.5, true); }},
      {"alpha_dropout", [] { return at::alpha_dropout(ones, 0.5, true); }},
      {"native_dropout", [] { return std::get<0>(at::native_dropout(ones, 0.5, true)); }},
      {"multinomial", [] { return at::multinomial(half, 4); }},
      {"normal_", [=] { return empty().normal_(); }},
      {"uniform_", [=] { return empty().uniform_(); }},
      {"random_", [=] { return empty().random_(); }},
      {"random_ from to", [=] { return empty().random_(5, 100000); }},
      {"exponential_", [=] { return empty().exponential_(); }},
      {"cauchy_", [=] { return empty().cauchy_(); }},
      {"log_normal_", [=] { return empty().log_normal_(); }},
      {"geometric_", [=] { return empty().geometric_(0.01); }},
      {"normal of a tensor", [] { return at::normal(half, 1.0); }},
      {"poisson", [] { return at::poisson(half * 100); }},
      {"rrelu", [] { return at::rrelu(-ones, 0.1, 0.3, true); }},
  };
}

TEST(SampleRandom, EveryRandomOperationDrawsFromTheScope) {
  const std::vector<int64_t> samples = {1};
  const at::Generator process = at::globalContext().defaultGenerator(at::kCPU);
  for (const auto& [name, draw] : random_operations()) {
    const at::Tensor before = process.get_state();
    const auto scoped = [&, &name = name, &draw = draw] {
      const SampleRandomScope scope({.seed = 2}, samples);
      begin_sample(1);
      const at::Tensor first = draw();
      EXPECT_FALSE(at::equal(draw(), first)) << name;
      return first;
    };
    EXPECT_TRUE(at::equal(scoped(), scoped())) << name;
    EXPECT_TRUE(at::equal(process.get_state(), before)) << name;
  }
}

TEST(SampleRandom, CoversEveryOperationWithAGenerator) {
  register_sample_random();
  int known = 0;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && toString(op->schema()).find("Generator? ") != std::string::npos) {
      EXPECT_TRUE(op->hasKernelForDispatchKey(c10::DispatchKey::TESTING_ONLY_GenericMode)) << name;
      ++known;
    }
  }
  EXPECT_GT(known, 70);
}

}  // namespace
}  // namespace lockstep::data
