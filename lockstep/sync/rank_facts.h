// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep {

/// A property of the program that must be equal on all ranks, such as a learning rate.
struct RankFact {
  std::string what;    ///< "the learning rates of optimizer 0".
  std::string value;   ///< "[0.1]".
  std::string remedy;  ///< What to do if ranks differ, an imperative clause.
};

/// The properties that ranks compare whenever they average gradients. Without functions none.
struct RankFacts {
  /// Returns a number that depends on all facts. Called in each averaging backward, so it must be
  /// cheap.
  std::function<uint64_t()> digest = nullptr;
  /// Returns the facts, in the same order on all ranks. Called once digests differ.
  std::function<std::vector<RankFact>()> list = nullptr;
  /// Returns whether this rank has a report for the others. Must be cheap.
  std::function<bool()> has_report = nullptr;
  /// Exchanges the reports. Collective: called on all ranks once any rank has one.
  std::function<void()> exchange_reports = nullptr;
};

/// Returns whether a parameter is trained or frozen now, as a fact.
RankFact trained_or_frozen(const NamedTensor& parameter);

/// Combines a digest with one more number.
inline uint64_t mix(uint64_t digest, uint64_t value) {
  return (digest ^ value) * 0x9E3779B97F4A7C15ULL ^ (digest >> 29U);
}

/// Compares one number of each rank within a reduction that ranks do anyway.
///
/// The number is sent as flags, 1 or 0: each of its 32 bits, the complement of each bit, and one
/// for a report. After a maximum or an average over ranks a bit and its complement are both above
/// zero if and only if ranks have different numbers. Rounding does not change that.
class DigestFlags {
 public:
  static constexpr int64_t kCount = 65;

  /// Writes the flags of this rank to `flags`, [kCount], contiguous, of any dtype on the CPU.
  static void write(const at::Tensor& flags, uint64_t digest, bool has_report);

  /// Holds what reduced flags say.
  struct Result {
    bool differ = false;      ///< Ranks have different numbers.
    bool any_report = false;  ///< Any rank has a report.
  };
  /// Reads reduced flags, of the same kind.
  static Result read(const at::Tensor& reduced);
};

/// Returns whether any rank has another text. Collective.
bool any_differs(Group& group, const std::string& mine);

/// Throws ConfigError as refuse_different_facts does, unless all ranks have the same facts. If they
/// do, it costs one all_gather of a few bytes. Collective.
void expect_equal_facts(Group& group, const std::vector<RankFact>& mine, const char* where);

/// Throws ConfigError, in the name of `where`, that names the first fact that differs, with the
/// values of rank 0 and of the first rank that differs from it. Throws one without names if all are
/// equal. Collective.
[[noreturn]] void refuse_different_facts(
    Group& group, const std::vector<RankFact>& mine, const char* where);

}  // namespace lockstep
