// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/data/loader/loader_core.h"
#include "lockstep/data/dataset/random.h"

namespace lockstep {

/// Which prepared loaders are being looped over, innermost last, and the batch each is at. What
/// gather_for_metrics needs to know which rows are real samples. Thread safety: none.
class ActiveLoaders final : public data::LoaderObserver {
 public:
  /// `rng_types` get the same state on all ranks of `group` whenever a pass starts.
  ActiveLoaders(Group group, std::vector<data::RngType> rng_types);
  void pass_requested(const void* loader) override;
  void pass_started(const void* loader, bool from_its_beginning) override;
  void batch_started(const void* loader, const data::BatchInfo& info) override;
  void batch_ended(const void* loader) override;
  void pass_ended(const void* loader) override;

  /// Called before a pass begins.
  void set_before_pass(std::function<void()> call) { before_pass_ = std::move(call); }
  /// Called once the outermost loop over a prepared loader is done with a batch that every rank had
  /// one of, if it trains: a moment in which a saved state is complete.
  void set_between_batches(std::function<void()> call) { between_batches_ = std::move(call); }
  /// The loops that run train: a backward belongs to them.
  void mark_trained();
  /// Whether that was ever said of a loop over this loader.
  bool has_trained(const void* loader) const { return trained_.contains(loader); }

  /// The batch of the innermost loop, or null outside any.
  const data::BatchInfo* current() const;
  /// Whether that is the last batch of its pass for some rank: where an accumulation group ends, on
  /// all ranks alike, though with uneven loaders some have one more.
  bool at_last_global_batch() const;

 private:
  Group group_;
  std::vector<data::RngType> rng_types_;
  std::function<void()> before_pass_;
  std::function<void()> between_batches_;
  struct Pass {
    const void* loader;
    std::optional<data::BatchInfo> batch = std::nullopt;
    bool trains = false;
  };
  std::vector<Pass> stack_;
  std::set<const void*> trained_;
};

}  // namespace lockstep
