// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::data {

/// The inputs of a dataset's random numbers that all samples of a pass share.
struct RandomKey {
  uint64_t seed = 0;          ///< LoaderOptions::seed.
  uint64_t sampler_seed = 0;  ///< Sampler::seed().
  int64_t epoch = 0;
};

/// RAII scope: gives a dataset random numbers that depend only on seed, epoch and sample.
///
/// Within the scope, torch's random operations on CPU tensors in this thread (rand, dropout,
/// bernoulli_, randperm ...) draw from the scope's generator instead of the process's default one.
/// So the number of workers and the training loop's draws do not change them, nor the reverse. An
/// operation with an explicit generator uses that generator.
///
/// A Loader opens a scope around every call into a dataset. The scope has one sequence of numbers
/// for the batch, and one for each sample; see begin_sample().
///
/// The scope sets a thread-local dispatch key. Its kernels cover the operations with a `Generator?`
/// argument; other operations cost nothing more. Not covered: torch::manual_seed() and the default
/// generator, threads that a dataset starts, other devices, std::rand, and engines of <random>;
/// seed the last with random_seed().
///
/// Cost: about 2 us for the first number of each sample, none without one. Not thread-safe: a scope
/// belongs to the thread that made it. Scopes may be nested.
class SampleRandomScope {
 public:
  /// `samples`: int64 indices of the batch in the dataset. `visits`: for each sample, the number of
  /// earlier occurrences in this epoch; empty if all are zero. Both must outlive the scope.
  /// Throws ConfigError if other code in the program uses torch's dispatch key.
  SampleRandomScope(
      const RandomKey& key, std::span<const int64_t> samples, std::span<const int64_t> visits = {});
  ~SampleRandomScope();
  SampleRandomScope(const SampleRandomScope&) = delete;
  SampleRandomScope& operator=(const SampleRandomScope&) = delete;

  /// Returns this thread's innermost scope; null outside of any.
  static SampleRandomScope* current();
  /// Returns the generator in the state of the running sample, or of the batch.
  const at::Generator& generator();

 private:
  friend void begin_sample(int64_t index);
  friend void end_samples();

  uint64_t seed_of_sample() const;
  uint64_t seed_of_batch() const;
  int64_t visits_of(int64_t index);

  c10::impl::IncludeDispatchKeyGuard key_guard_;
  SampleRandomScope* outer_;
  RandomKey key_;
  std::span<const int64_t> samples_;
  std::span<const int64_t> visits_;
  size_t next_row_ = 0;  ///< The row where visits_of() starts its search.
  bool in_sample_ = false;
  int64_t sample_ = 0;
  int64_t visit_ = 0;
  bool seeded_ = false;
  at::Generator generator_;
};

/// Starts the random numbers of sample `index`. Call it in a custom `get_batch` that makes samples
/// one by one; collated() and from_torch() call it for every `get`. Does nothing outside a Loader.
void begin_sample(int64_t index);
/// Returns to the random numbers of the batch; call it after the last sample.
void end_samples();

/// Draws a seed for a random engine from the running sample's random numbers:
/// `std::mt19937_64 engine(data::random_seed());`. Outside a Loader it draws from torch's default
/// generator.
uint64_t random_seed();

/// Registers the kernels with torch, once in a process; the first Loader calls it. Throws
/// ConfigError as SampleRandomScope does.
void register_sample_random();

}  // namespace lockstep::data
