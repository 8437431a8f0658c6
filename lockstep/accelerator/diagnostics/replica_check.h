// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/accelerator/diagnostics/loss_watch.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/loader_facts.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/sync/rank_facts.h"

namespace lockstep::internal {

/// Finds processes that would train different models, and parameters that no process averages.
///
/// Numbers of updates, clippings and passes over loaders, learning rates and orders of samples
/// are sent with each averaging of gradients, and once in 100 updates checksums of all parameters.
/// compare_now() compares the passes and the checksums. The settings of an optimizer are compared
/// when it is prepared. A difference is a ConfigError on all processes that names the first one.
///
/// Checksums are not compared if the processes' processors, threads or devices differ, since these
/// may round the last bit differently, nor those of parameters that ZeRO shards.
///
/// Cost: a few numbers in each averaging, one pass over the parameters in 100 updates and in
/// compare_now(); docs/faults.md has the measured time, below 0.25 % of a small step. Not
/// thread-safe, except for calls from backward.
class ReplicaCheck final : public TrainingStepObserver {
 public:
  ReplicaCheck(
      const PreparedObjects& objects,
      const TrainingStep& step,
      LossWatch& losses,
      const ActiveLoaders& active,
      const LocalSgdScopes& local_sgds)
      : objects_(objects), step_(step), losses_(losses), active_(active), local_sgds_(local_sgds) {}

  /// Watches the models and optimizers that were prepared since the last call. Throws ConfigError
  /// for settings of an optimizer that differ, and for parameters that a model has got since it was
  /// prepared. Collective.
  void objects_prepared() override;
  /// Compares the passes over loaders and the parameters of all models now. Throws ConfigError in
  /// the name of `where`. Ignores parameters within LocalSgd, unless they `are_averaged`.
  /// Collective.
  void compare_now(const char* where, bool are_averaged = false);
  /// Notes the parameters at a wait_for_everyone. The program may write to them afterwards on one
  /// process, for instance averages to save: that changes no training, so compare_at_end() ignores
  /// it. Local; cost: one pass over the parameters, if anything was trained since the last call.
  void note_at_barrier();
  /// Does the same as compare_now("end_training"), but ignores the parameters if they were equal at
  /// the last barrier, after which nothing was trained. Collective.
  void compare_at_end();
  /// Warns of processes without a prepared loader, and looks for new parameters now and then.
  void before_update(const Optimizer& optimizer) override;
  /// Stops watching.
  void objects_forgotten() override;

 private:
  /// Holds a checksum of the parameters at a barrier, and the counts of training until then.
  struct Noted {
    int64_t backwards = 0;
    int64_t updates = 0;
    uint64_t parameters = 0;  ///< A checksum.
  };

  uint64_t digest();
  const LoaderCores& compared_loaders() const;
  std::vector<RankFact> facts() const;
  RankFacts facts_while_alive();
  RankFacts expert_facts_while_alive();
  uint64_t expert_digest();
  bool is_checksum_due(int64_t& updates_at_last) const;
  static std::vector<RankFact> parameter_facts(const NamedTensors& parameters);
  NamedTensors replicated_parameters() const;
  NamedTensors experts() const;
  bool compares_parameters(bool are_averaged) const;
  void compare(const char* where, bool with_parameters);
  bool is_current(const Noted& noted) const;
  bool were_equal_at_barrier() const;
  void compare_settings();
  void find_rates();
  void expect_known_parameters(const char* where);
  void warn_of_own_data();
  std::vector<double> rates_of(size_t optimizer) const;

  const PreparedObjects& objects_;
  const TrainingStep& step_;
  LossWatch& losses_;
  const ActiveLoaders& active_;
  const LocalSgdScopes& local_sgds_;
  std::map<const void*, std::set<const void*>> known_;  ///< [model] Parameters at prepare().
  size_t compared_optimizers_ = 0;
  bool is_same_hardware_ = true;
  int64_t updates_at_checksum_ = 0;
  std::optional<Noted> at_barrier_;
  bool has_checksum_ = false;  ///< The last digest has a checksum of the parameters.
  int64_t updates_at_expert_checksum_ = 0;
  bool has_expert_checksum_ = false;
  std::vector<bool> has_rates_;  ///< [optimizer] Its class has learning rates.
  bool has_warned_ = false;
  bool has_warned_of_own_data_ = false;
  /// Optimizers and models may outlive this object; their functions hold it weakly.
  std::shared_ptr<const void> alive_ = std::make_shared<int>(0);
};

}  // namespace lockstep::internal
