// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/offload/host_staging.h"
#include "lockstep/offload/tensor_swapper.h"
#include "lockstep/optim/flat/rule_calls.h"
#include "lockstep/zero_options/offload.h"

namespace lockstep::optim {

/// Updates buckets with offloaded state or parameters on the host, one after the other. An update
/// overlaps with copying the next bucket to the host (gradients and parameters from the device,
/// state from its file), and the last bucket back.
///
/// The device's parameters are authoritative: the host has copies of one bucket and the next, so
/// values that a program writes to its parameters are updated as usual. The kernels are the CPU's.
/// Bit-exact with an update on the CPU; a GPU's own may differ in the last bits. CPU parameters and
/// gradients are not copied.
///
/// Host memory: twice a bucket's parameters and gradients, if they are on a device;
/// OffloadOptimizer's number of buffers for state in files.
class HostUpdate {
 public:
  /// `fields`: state fields of a bucket in files; `values_in_files`: some parameters are, too.
  /// Throws ConfigError for impossible settings.
  HostUpdate(const OffloadOptimizer& options, int64_t fields, bool values_in_files);

  /// One buffer with gradients.
  struct Bucket {
    size_t group;
    offload::TensorSwapper::Set files;  ///< Those of its parameters and state, if any.
    RuleCalls calls;
  };
  /// Runs `update` for each bucket's calls on the host, and stores the results.
  void run(
      const std::vector<Bucket>& buckets,
      const std::function<void(size_t group, const RuleCall& call)>& update);

  /// Returns whether any state or parameters are in files.
  bool uses_files() const { return swapper_.has_value(); }
  /// Returns the bytes of host memory for running transfers.
  int64_t memory_bytes() const;
  int64_t bytes_read() const { return swapper_ ? swapper_->bytes_read() : 0; }
  int64_t bytes_written() const { return swapper_ ? swapper_->bytes_written() : 0; }

 private:
  /// Returns the calls for one bucket, with parameters and gradients on the host.
  std::vector<RuleCall> fetch(size_t slot, const Bucket& bucket);

  offload::HostStaging staging_;
  std::optional<offload::TensorSwapper> swapper_;  ///< If any are in files.
};

}  // namespace lockstep::optim
