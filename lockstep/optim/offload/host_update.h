// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/offload/host_staging.h"
#include "lockstep/offload/options.h"
#include "lockstep/offload/tensor_swapper.h"
#include "lockstep/optim/flat/flat_group.h"
#include "lockstep/optim/flat/update_batches.h"

namespace lockstep::optim {

/// The update of buckets whose state, or whose parameters, lie off the device: by the host, one
/// bucket after the other. While one is updated the next one's gradients and parameters come from
/// the device and its state from its file, and the last one's go back.
///
/// The device's parameters are the ones that count: the host has copies of one bucket and the next,
/// so what a program writes to its parameters is updated like all else. The kernels are those of
/// the CPU. The numbers are to the bit those of an update on the CPU; a GPU's own may differ from
/// them in the last bits. Nothing is copied where parameters and gradients are the host's anyway.
///
/// Memory of the host: of a bucket's parameters and gradients twice where there is a device; of
/// state in files as many buffers as OffloadOptimizer says. Thread safety: none.
class HostUpdate {
 public:
  /// `fields`: of one bucket's state, that lie in files; `values_in_files`: some parameters do,
  /// too. ConfigError for settings that cannot be.
  HostUpdate(const OffloadOptimizer& options, int64_t fields, bool values_in_files);

  /// One buffer with gradients.
  struct Bucket {
    size_t group;
    size_t buffer;
    UpdateBatches batches_to_update;
  };
  /// Calls `update` with each bucket's batches on the host, and puts what it gives where it
  /// belongs.
  void run(
      const std::vector<FlatGroup>& groups,
      const std::vector<Bucket>& buckets,
      const std::function<void(size_t group, const Batch& batch)>& update);

  /// Whether any state or parameters lie in files.
  bool uses_files() const { return swapper_.has_value(); }
  /// Of the host, for all that is under way.
  int64_t memory_bytes() const;
  int64_t bytes_read() const { return swapper_ ? swapper_->bytes_read() : 0; }
  int64_t bytes_written() const { return swapper_ ? swapper_->bytes_written() : 0; }

 private:
  /// The batches of one bucket, parameters and gradients on the host.
  std::vector<Batch> fetch(size_t slot, const Bucket& bucket);

  offload::HostStaging staging_;
  std::optional<offload::TensorSwapper> swapper_;  ///< If anything lies in files.
};

}  // namespace lockstep::optim
