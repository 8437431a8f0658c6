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

/// Runs updates on the host before `step`, while backward still runs. A thread updates copies of
/// parameters and state of buckets whose gradients are complete. `step` uses a result if all its
/// inputs (numbers, and tensors' version counters) are unchanged, which costs a copy of the
/// parameters; else it updates as usual. Bit-exact.
///
/// Host memory: a second copy of state, parameters and gradients of these buckets. Not thread-safe;
/// calls may come from several threads, one after the other. Modelled on Lian et al.,
/// "SuperOffload", ASPLOS 2026, which updates in place and rolls back.
class SpeculativeStep {
 public:
  explicit SpeculativeStep(bool pinned) : pinned_(pinned) {}

  /// A bucket: the index of its group, and its index in the group.
  using Key = std::pair<size_t, size_t>;

  /// The inputs of a bucket's update.
  struct Source {
    at::Tensor parameters;          ///< The updated part of the bucket.
    at::Tensor gradient;            ///< The parameters'.
    std::vector<at::Tensor> state;  ///< [field] The complete bucket's, on the host; or undefined.
    int64_t begin = 0;              ///< The offset of the parameters in it.
    int64_t step = 0;               ///< The number of the update.
    std::vector<double> factors;    ///< See RuleCall.
    std::vector<double> numbers;    ///< All other inputs of the update.
  };

  /// Begins an update. `update` is called with the copies on another thread.
  void begin(const Key& key, Source source, std::function<void(const RuleCall& call)> update);
  /// Returns the gradient of a begun update; null if none is begun.
  const at::Tensor* gradient(const Key& key) const;
  /// If an update was begun from `source`, stores its results in parameters and state and returns
  /// true. Throws the exception of `update`.
  bool take(const Key& key, const Source& source);
  /// Drops a begun update. Blocks until no thread reads the gradient any more.
  void discard(const Key& key) noexcept;
  void discard() noexcept;

  /// Returns the number of used updates since construction.
  int64_t taken() const { return taken_; }

 private:
  struct Entry {
    explicit Entry(bool pinned) : host_staging(pinned) {}

    offload::HostStaging host_staging;
    std::optional<Source> source;  ///< Set while an update is begun.
    at::Tensor parameters;         ///< Copies, which are updated.
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
