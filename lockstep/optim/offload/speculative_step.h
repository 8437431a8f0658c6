// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/offload/host_staging.h"
#include "lockstep/offload/serial_executor.h"
#include "lockstep/optim/flat/rule.h"

namespace lockstep::optim {

/// Updates on the host that begin before `step`, while backward still runs: of buckets whose
/// gradient is complete, on copies of their parameters and state, by a thread of its own. `step`
/// takes what became of one, if all that it was made from still is what it was (numbers, and the
/// version counters of tensors), which costs a copy of the parameters; else it updates as ever. The
/// bits are the same.
///
/// Memory of the host: state, parameters and gradients once more, of what is updated so. Thread
/// safety: none; calls may come from several threads, one after the other. After: Lian et al.,
/// "SuperOffload", ASPLOS 2026, which updates in place, and takes back what should not have been.
class SpeculativeStep {
 public:
  explicit SpeculativeStep(bool pinned) : pinned_(pinned) {}

  /// A bucket: its group's index, and its own in that.
  using Key = std::pair<size_t, size_t>;

  /// What an update of a bucket is made from.
  struct Source {
    at::Tensor parameters;          ///< What of the bucket is updated.
    at::Tensor gradient;            ///< Of these.
    std::vector<at::Tensor> state;  ///< [field] Of the whole bucket, on the host; or undefined.
    int64_t begin = 0;              ///< Where the parameters are in that.
    int64_t step = 0;               ///< The update's number.
    std::vector<double> factors;    ///< See Batch.
    std::vector<double> numbers;    ///< All else that the update depends on.
  };

  /// Begins one. `update` is called with the copies on another thread.
  void begin(const Key& key, Source source, std::function<void(const Batch& batch)> update);
  /// The gradient of which one was begun; null if none was.
  const at::Tensor* gradient(const Key& key) const;
  /// Whether one was begun from `source`; parameters and state then are what it made of them.
  /// Throws what `update` did.
  bool take(const Key& key, const Source& source);
  /// Drops what was begun; returns when nothing reads the gradient any more.
  void forget(const Key& key) noexcept;
  void forget() noexcept;

  /// How many were taken since construction.
  int64_t taken() const { return taken_; }

 private:
  struct Entry {
    explicit Entry(bool pinned) : host_staging(pinned) {}

    offload::HostStaging host_staging;
    std::optional<Source> source;  ///< While one is begun.
    at::Tensor parameters;         ///< Copies, that are updated.
    at::Tensor gradient;
    std::vector<at::Tensor> state;  ///< [field]
    std::shared_future<void> done;
  };

  bool pinned_;
  int64_t taken_ = 0;
  std::map<Key, Entry> entries_;
  offload::SerialExecutor executor_;  // Last, so that it ends first.
};

}  // namespace lockstep::optim
