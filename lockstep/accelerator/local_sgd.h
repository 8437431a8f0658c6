// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/sync/local_sgd.h"

namespace lockstep {

/// What becomes of the optimizer's momenta when parameters are averaged.
enum class LocalOptimizerState {
  kKeep,    ///< Every process goes on with its own, as in Accelerate.
  kAverage  ///< They are averaged along; as many bytes again for each of them.
};

struct LocalSgdScopeOptions {
  /// Updates between two averagings.
  int64_t local_sgd_steps = 8;
  /// False: data parallel as ever; nothing here does anything.
  bool enabled = true;
  /// So many updates are plain data parallel first.
  int64_t warmup_steps = 0;
  bool average_buffers = true;
  LocalOptimizerState optimizer_state = LocalOptimizerState::kKeep;
};

/// While it lives, gradients of one prepared model stay on their process, and parameters are
/// averaged every so many updates (see LocalSgdCore):
///
///   lockstep::LocalSgd local_sgd(accelerator, model, {.local_sgd_steps = 8});
///   for (auto& batch : loader) {
///     auto micro_step = accelerator.accumulate(model);
///     accelerator.backward(loss(model, batch));
///     optimizer.step(); scheduler.step(); optimizer.zero_grad();
///     local_sgd.step();
///   }
///   local_sgd.finish();
///
/// After `finish()` optimizers have rank 0's state everywhere, so that data parallel may follow.
///
/// `step()` may be called in every micro-step: it counts updates that were applied. `finish()`
/// averages a last time; destroying it without (an exception passes) communicates nothing, leaves
/// processes with different parameters, and says so in the log if no exception is why. While it
/// lives, save_state averages first and keeps every process's own optimizer state; the number of
/// updates is part of the state. backward(loss_sum, count) still adds up the counts of all
/// processes at every update, a small message. All loaders must give every process equally many
/// batches.
///
/// With one process, or enabled = false, it does nothing.
class LocalSgd {
 public:
  /// Collective in so far as all processes must make it. ConfigError for a model that was not
  /// prepared, or has a LocalSgd already; inside join_uneven_inputs; and where gradients are to be
  /// averaged in every micro-step (sync_each_batch).
  template <ModuleHandle Model>
  LocalSgd(Accelerator& accelerator, const Model& model, LocalSgdScopeOptions options = {})
      : LocalSgd(accelerator, static_cast<const void*>(model.get()), options) {}
  ~LocalSgd();
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  /// After the optimizer's step. Returns whether parameters were averaged. Collective then.
  bool step();
  /// Averages the parameters and ends local updates; again does nothing. Collective.
  void finish();
  /// Applied updates counted so far.
  int64_t steps() const;

 private:
  LocalSgd(Accelerator& accelerator, const void* model, LocalSgdScopeOptions options);
  void unregister();

  Accelerator& accelerator_;
  std::shared_ptr<LocalSgdCore> core_;  ///< Null if there is nothing to do.
  int exceptions_at_start_;
};

}  // namespace lockstep
