// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/flat/flat_parameter_groups.h"
#include "lockstep/optim/offload/speculative_step.h"

namespace lockstep::optim {

/// Begins updates of an optimizer's buckets before `step`, see SpeculativeStep. For elementwise
/// rules, and buckets with offloaded state in memory. Not thread-safe; calls may come from several
/// threads, one after the other.
class SpeculativeUpdates {
 public:
  /// `flat_groups` must outlive this. `pinned`: copies use page-locked memory.
  SpeculativeUpdates(FlatParameterGroups& flat_groups, bool pinned)
      : flat_groups_(flat_groups), step_(pinned) {}

  /// Begins the update of the slices in buffer `buffer` of a group, if possible. `gradient`: the
  /// averaged gradient, before clipping, in the order of the buffer.
  void begin(size_t group, size_t buffer, const at::Tensor& gradient);
  /// Drops the update of a buffer. Call it before its gradient or a parameter is written to.
  void discard(size_t group, size_t buffer) noexcept { step_.discard({group, buffer}); }
  void discard() noexcept { step_.discard(); }
  /// Stores the result for items `begin` to `end` of one buffer and counts the update. Does so only
  /// if an update was begun and its inputs are unchanged; else drops it. Returns whether it stored
  /// the result.
  bool take(size_t group, size_t begin, size_t end);
  /// Returns the number of used updates since construction.
  int64_t taken() const { return step_.taken(); }

 private:
  /// Returns the inputs of an update; nothing if an input does not exist yet, or is not equal for
  /// all items.
  std::optional<SpeculativeStep::Source> source_of(
      size_t group, size_t begin, size_t end, const at::Tensor& gradient);
  std::optional<SpeculativeStep::Source> source_of_gradients(
      size_t group, size_t begin, size_t end, const at::Tensor& gradient);

  FlatParameterGroups& flat_groups_;
  SpeculativeStep step_;
};

}  // namespace lockstep::optim
