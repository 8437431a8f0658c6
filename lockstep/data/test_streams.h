// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lockstep/data/loader/loader_core.h"

namespace lockstep::data {

/// A stream that yields 1000 * epoch, 1000 * epoch + 1, ...; a batch lists its samples. Counts the
/// samples read.
struct Counting {
  explicit Counting(int64_t samples) : count(samples) {}
  auto stream(int64_t epoch) const {
    return [*this, epoch, next = int64_t{0}]() mutable -> std::optional<int64_t> {
      if (next == broken) {
        throw std::domain_error("broken sample");
      }
      if (next == count) {
        return std::nullopt;
      }
      ++*samples_read;
      return 1000 * epoch + next++;
    };
  }
  std::vector<int64_t> collate(std::vector<int64_t> samples) const { return samples; }

  int64_t count;
  int64_t broken = -1;
  std::shared_ptr<std::atomic<int64_t>> samples_read = std::make_shared<std::atomic<int64_t>>(0);
};

/// Records every batch that the observer is notified of.
class InfoRecorder final : public LoaderObserver {
 public:
  void batch_started(const void* /*loader*/, const BatchInfo& info) override {
    infos.push_back(info);
  }
  std::vector<BatchInfo> infos;
};

template <typename L>
auto batches_of(L& loader) {
  std::vector<typename std::remove_reference_t<L>::Batch> batches;
  for (auto& batch : loader) {
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace lockstep::data
