// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/base/program/stop_request.h"
#include "lockstep/comm/group.h"

namespace lockstep::internal {

/// Lets the processes agree, between two batches, whether to save and exit because one of them was
/// asked to. See AcceleratorOptions::save_when_preempted.
///
/// Cost: a reduction of two numbers about five times a second, and at least every 64 batches.
class Preemption {
 public:
  /// Records SIGTERM and SIGUSR1 from now on, if that is enabled.
  explicit Preemption(const RunContext& context);

  /// Acts as a SIGTERM. Throws ConfigError if saving when preempted is off, or without a
  /// project_dir.
  void request();
  /// Returns whether any process was asked to stop. Collective at the batches that it chooses, the
  /// same on all ranks.
  bool is_agreed();
  /// Lets the processes ask at the next batch again, after a state was loaded.
  void restart() { interval_ = batches_left_ = 1; }
  /// Returns the signal that this process received, or 0.
  int signal() const;
  /// Forgets all requests.
  void clear();

 private:
  bool is_enabled() const;
  bool exchange(bool own);

  const RunContext& context_;
  Group group_;
  std::unique_ptr<StopRequests> stop_requests_;
  bool requested_ = false;
  std::optional<std::chrono::steady_clock::time_point> last_exchange_;
  int64_t interval_ = 1;  ///< Batches between two exchanges.
  int64_t batches_left_ = 1;
};

}  // namespace lockstep::internal
