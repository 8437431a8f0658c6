// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// In which order the samples of a dataset are visited: a pure function of the epoch, so that every
/// rank computes the same order without a word, and a resumed job without a file.
///
/// Thread safety: all of a sampler is const and may be called from several threads at once.
class Sampler {
 public:
  Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler() = default;

  /// Samples in a pass, over all ranks together.
  virtual int64_t size() const = 0;
  /// `size()` indices into the dataset. Costs 8 bytes a sample for as long as the pass runs.
  virtual std::vector<int64_t> order(int64_t epoch) const = 0;
  /// What `order` depends on besides the epoch; 0 if nothing. A cursor saved under another seed is
  /// refused.
  virtual uint64_t seed() const { return 0; }
};

/// 0, 1, 2, ... in every epoch.
class SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(int64_t size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t size_;
};

/// A new permutation in every epoch: `torch.randperm(size)` under a CPU generator seeded with
/// seed + epoch (modulo 2^64), which is what Accelerate's SeedableRandomSampler yields. torch's own
/// generator is not touched. Like torch's, it uses the lower 32 bits of the sum only.
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
