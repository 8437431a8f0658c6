// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::data {

/// The part of a data set's random numbers that all samples of a pass share.
struct RandomKey {
  uint64_t seed = 0;          ///< LoaderOptions::seed.
  uint64_t sampler_seed = 0;  ///< Sampler::seed().
  int64_t epoch = 0;
};

/// Gives a data set random numbers that depend on seed, epoch and sample alone.
///
/// While a scope exists, this thread's random operations of torch on CPU tensors (rand, dropout,
/// bernoulli_, randperm ...) draw from the scope's generator instead of the process's default one.
/// So neither the number of workers nor what the training loop draws changes them, and the loop's
/// own numbers stay as they are. An operation that is given a generator uses that one.
///
/// A Loader opens a scope around everything that it asks of a data set. The scope has one sequence
/// of numbers for the batch, and one for each sample; see begin_sample().
///
/// It does so by a kernel under a dispatch key of this thread's, for the operations that have an
/// argument `Generator?`: others cost nothing more. Not covered: torch::manual_seed() and the
/// default generator itself, threads that a data set starts, other devices, std::rand, and engines
/// of <random>; seed the last with random_seed().
///
/// Cost: about 2 us for the first number of each sample, none without one. Thread safety: belongs
/// to the thread that made it; scopes may be nested.
class SampleRandomScope {
 public:
  /// `samples`: int64 indices of the batch in the data set. `visits`: how often each came before in
  /// this epoch; empty if never. Both must outlive the scope. ConfigError if something else in the
  /// program took torch's dispatch key.
  SampleRandomScope(
      const RandomKey& key, std::span<const int64_t> samples, std::span<const int64_t> visits = {});
  ~SampleRandomScope();
  SampleRandomScope(const SampleRandomScope&) = delete;
  SampleRandomScope& operator=(const SampleRandomScope&) = delete;

  /// This thread's innermost scope; null outside of any.
  static SampleRandomScope* current();
  /// In the state of the running sample, or of the batch.
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
  size_t next_row_ = 0;  ///< Where visits_of() looks first.
  bool in_sample_ = false;
  int64_t sample_ = 0;
  int64_t visit_ = 0;
  bool seeded_ = false;
  at::Generator generator_;
};

/// Starts the random numbers of sample `index`, for a `get_batch` of one's own that makes its
/// samples one by one. collated() and from_torch() do it for every `get`. Does nothing outside of a
/// Loader.
void begin_sample(int64_t index);
/// Goes on with the random numbers of the batch: after the last sample.
void end_samples();

/// Draws a seed for an engine of one's own from the random numbers of the running sample:
/// `std::mt19937_64 engine(data::random_seed());`. Outside of a Loader from torch's default
/// generator.
uint64_t random_seed();

/// Registers the kernels with torch, once in a process; the first Loader does. ConfigError as
/// above.
void register_sample_random();

}  // namespace lockstep::data
