// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/data/loader_core.h"
#include "lockstep/data/random.h"

namespace lockstep {

/// Which prepared loaders are being looped over, innermost last, and the batch each is at. What
/// gather_for_metrics needs to know which rows are real samples. Thread safety: none.
class ActiveLoaders final : public data::LoaderObserver {
 public:
  /// `rng_types` get the same state on all ranks of `group` whenever a pass starts.
  ActiveLoaders(Group group, std::vector<data::RngType> rng_types);
  void pass_started(const void* loader) override;
  void batch_started(const void* loader, const data::BatchInfo& info) override;
  void pass_ended(const void* loader) override;

  /// The batch of the innermost loop, or null outside any.
  const data::BatchInfo* current() const;
  /// Whether that is the last batch of its pass for some rank: where an accumulation group ends, on
  /// all ranks alike, though with uneven loaders some have one more.
  bool at_last_round() const;

 private:
  Group group_;
  std::vector<data::RngType> rng_types_;
  std::vector<std::pair<const void*, std::optional<data::BatchInfo>>> stack_;
};

}  // namespace lockstep
