// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep {

struct LocalSgdOptions {
  /// Parameters are averaged after so many applied optimizer steps.
  int64_t local_sgd_steps = 8;
  /// False: data parallel as ever; every call does nothing.
  bool enabled = true;
  /// So many applied steps are plain data parallel first (post-local SGD, Lin et al. 2018).
  int64_t warmup_steps = 0;
  /// Whether buffers are averaged along: those of floating point; of others rank 0's are taken.
  /// Accelerate leaves each rank its own, which is what false does.
  bool average_buffers = true;
};

/// Lets every rank step by its own gradients and averages parameters now and then.
///
/// From construction on, gradients of `model` stay local, whatever set_sync says. The parameters
/// are averaged after every `local_sgd_steps` applied steps and by `finish()`; frozen ones are left
/// out, one under two names is averaged once, float16 and bfloat16 are averaged in float32. All
/// ranks must take the same number of steps.
///
/// With a period of 1 gradients are averaged instead, by the data parallel that is already there:
/// for plain SGD from equal parameters, the mean of p - lr*g_i is p - lr*mean(g_i), but only the
/// latter is bit for bit data parallel (in floating point the former is not), and it overlaps with
/// backward. Nor does the state of other optimizers drift apart then.
///
/// Sends 2(N-1)/N * parameter bytes a period and rank (ring), in a few flat messages. Memory: one
/// bucket of 25 MiB while averaging. The destructor and `abandon()` never communicate: after an
/// exception ranks are left with their own parameters. Thread safety: none. After: Stich, "Local
/// SGD Converges Fast and Communicates Little", ICLR 2019.
class LocalSgdCore {
 public:
  /// `model`: of `parameters` and `buffers`; kept alive. `also_average`: tensors to average along,
  /// such as momenta, each name once; integers among them become rank 0's. Ranks may hold different
  /// ones (a parameter that took part on one rank only has no momentum elsewhere): what some rank
  /// lacks is left alone on the others, so differs between ranks until somebody mends it.
  /// ConfigError for a count out of range, and for a model with a comm hook that no gradient would
  /// ever pass.
  LocalSgdCore(
      std::shared_ptr<DataParallel> model,
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      Group group,
      LocalSgdOptions options = {},
      std::function<NamedTensors()> also_average = nullptr);
  /// abandon().
  ~LocalSgdCore();
  LocalSgdCore(const LocalSgdCore&) = delete;
  LocalSgdCore& operator=(const LocalSgdCore&) = delete;

  /// To be called after each optimizer step that was applied (not one skipped or accumulated).
  /// Returns whether it averaged: a caller that resets optimizer state does it then. Collective
  /// then; throws CommError.
  bool step();
  /// Averages now, for a checkpoint say, unless nothing has been stepped since the last time; the
  /// period goes on as it was. Returns whether it did. Collective.
  bool average();
  /// average(), then gradients are averaged again. Further calls do nothing. Collective.
  bool finish();
  /// Gradients are averaged again, parameters are left as they are.
  void abandon() noexcept;

  /// Applied steps so far: the whole state.
  int64_t steps() const { return steps_; }
  /// Goes on as after `steps` steps, with parameters that are equal on all ranks (as `average` and
  /// a checkpoint leave them).
  void load_steps(int64_t steps);

 private:
  bool averages_parameters() const;

  std::shared_ptr<DataParallel> model_;
  std::vector<at::Tensor> floating_;
  std::vector<at::Tensor> others_;
  Group group_;
  LocalSgdOptions options_;
  std::function<NamedTensors()> also_average_;
  int64_t steps_ = 0;
  bool dirty_ = false;  ///< Parameters may differ between ranks.
  bool active_ = true;
};

}  // namespace lockstep
