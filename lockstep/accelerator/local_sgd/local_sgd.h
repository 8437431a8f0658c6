// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/sync/local_sgd/local_sgd.h"

namespace lockstep {

namespace internal {
class LocalSgdScopes;
class TrainingStep;
struct PreparedObjects;
class AcceleratorInternals;
}  // namespace internal

/// The treatment of the optimizer's momenta when parameters are averaged.
enum class LocalOptimizerState {
  kKeep,    ///< Every process keeps its own, as in Accelerate.
  kAverage  ///< They are averaged, too; as many bytes again for each momentum.
};

struct LocalSgdScopeOptions {
  /// Updates between two averagings.
  int64_t local_sgd_steps = 8;
  /// False: plain data parallel; this object does nothing.
  bool enabled = true;
  /// Number of plain data-parallel updates at the start.
  int64_t warmup_steps = 0;
  bool average_buffers = true;
  LocalOptimizerState optimizer_state = LocalOptimizerState::kKeep;
};

/// RAII scope of local SGD for one prepared model: gradients stay on their process and are not
/// averaged; parameters are averaged every `local_sgd_steps` updates (see LocalSgdCore):
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
/// After `finish()` all optimizers have rank 0's state, so that data parallel may follow.
///
/// `step()` may be called in every micro-step: it counts applied updates. `finish()` averages a
/// last time. Destroying the object without finish() (an exception propagates) communicates nothing
/// and leaves processes with different parameters; the log says so if no exception is the reason.
/// During the scope, save_state averages first and saves every process's own optimizer state; the
/// number of updates is part of the state. backward(loss_sum, count) still sums the counts of all
/// processes at every update, a small message. All loaders must give every process the same number
/// of batches.
///
/// With one process, or enabled = false, it does nothing.
class LocalSgd {
 public:
  /// Collective: all processes must construct it. Throws ConfigError for a model that was not
  /// prepared, or has a LocalSgd already; inside join_uneven_inputs; and with sync_each_batch,
  /// which averages gradients in every micro-step.
  template <ModuleHandle Model>
  LocalSgd(Accelerator& accelerator, const Model& model, LocalSgdScopeOptions options = {})
      : LocalSgd(accelerator, static_cast<const void*>(model.get()), options) {}
  ~LocalSgd();
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  /// Counts an update; call it after the optimizer's step. Returns whether parameters were
  /// averaged; collective if so.
  bool step();
  /// Averages the parameters and ends local updates. A second call does nothing. Collective.
  void finish();
  /// Returns the number of applied updates so far.
  int64_t steps() const;

 private:
  friend class internal::AcceleratorInternals;
  LocalSgd(Accelerator& accelerator, const void* model, LocalSgdScopeOptions options);
  void unregister();

  internal::TrainingStep& step_;
  internal::PreparedObjects& objects_;
  internal::LocalSgdScopes& scopes_;
  std::shared_ptr<LocalSgdCore> core_;  ///< Null if disabled.
  int exceptions_at_start_;
};

}  // namespace lockstep
