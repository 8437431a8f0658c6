// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// Determines the order of a dataset's samples.
///
/// The order is a pure function of the epoch, so all ranks and resumed jobs compute the same one
/// without communication.
///
/// Thread safety: immutable.
class Sampler {
 public:
  Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler() = default;

  /// Returns the number of samples of a pass, over all ranks together.
  virtual int64_t size() const = 0;
  /// Returns `size()` indices into the dataset. They take 8 bytes per sample during the pass.
  virtual std::vector<int64_t> order(int64_t epoch) const = 0;
  /// Returns the second input of `order` next to the epoch; 0 if there is none. A cursor saved with
  /// another seed is refused.
  virtual uint64_t seed() const { return 0; }
};

/// Visits the samples 0, 1, 2, ... in every epoch.
class SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(int64_t size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t size_;
};

/// Draws a new permutation in every epoch, as Accelerate's SeedableRandomSampler.
///
/// The order is `torch.randperm(size)` with a CPU generator seeded with seed + epoch (modulo 2^64),
/// of which torch uses the lower 32 bits. The default generator of torch is not used.
class RandomSampler final : public Sampler {
 public:
  RandomSampler(int64_t size, uint64_t seed);
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(int64_t epoch) const override;
  uint64_t seed() const override { return seed_; }

 private:
  int64_t size_;
  uint64_t seed_;
};

}  // namespace lockstep::data
