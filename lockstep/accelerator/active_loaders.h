// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/loader_core.h"

namespace lockstep {

/// Which prepared loaders are being looped over, innermost last, and the batch each is at. What
/// gather_for_metrics needs to know which rows are real samples. Thread safety: none.
class ActiveLoaders final : public data::LoaderObserver {
 public:
  void pass_started(const void* loader) override;
  void batch_started(const void* loader, const data::BatchInfo& info) override;
  void pass_ended(const void* loader) override;

  /// The batch of the innermost loop, or null outside any.
  const data::BatchInfo* current() const;

 private:
  std::vector<std::pair<const void*, std::optional<data::BatchInfo>>> stack_;
};

}  // namespace lockstep
