// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

class Accelerator;
class BackwardRunner;
class LocalSgdScopes;
class UnpreparedUpdateCheck;
struct LoopState;
struct PreparedObjects;
struct RunContext;

/// Gives the engine, LocalSgd and find_executable_batch_size access to parts of an Accelerator. Not
/// for programs: it changes without notice.
class AcceleratorInternals {
 public:
  static const RunContext& context(Accelerator& accelerator);
  static PreparedObjects& objects(Accelerator& accelerator);
  /// State of the training loop between updates.
  static LoopState& loop(Accelerator& accelerator);
  static BackwardRunner& backward_runner(Accelerator& accelerator);
  /// The running scopes of LocalSgd.
  static LocalSgdScopes& local_sgds(Accelerator& accelerator);
  /// The check for updates by an optimizer that prepare() did not return.
  static UnpreparedUpdateCheck& update_check(Accelerator& accelerator);
};

}  // namespace lockstep
