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
  static LoopState& loop(Accelerator& accelerator);
  static BackwardRunner& backward_runner(Accelerator& accelerator);
  static LocalSgdScopes& local_sgds(Accelerator& accelerator);
  static UnpreparedUpdateCheck& update_check(Accelerator& accelerator);
};

}  // namespace lockstep
