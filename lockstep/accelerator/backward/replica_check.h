// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/loader_facts.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/sync/rank_facts.h"

namespace lockstep {

/// Finds processes that would train different models, and parameters that no process averages.
///
/// Numbers of updates, clippings and passes over loaders, learning rates and orders of samples
/// travel with each averaging of gradients. Every 100 updates checksums of all parameters do, too;
/// compare_now() exchanges all at once. The settings of an optimizer are compared when it is
/// prepared. Each is a ConfigError on all processes that names the first difference.
///
/// Checksums are not compared if the processes' processors, threads or devices differ, since these
/// may round the last bit differently, nor those of parameters that ZeRO shards.
///
/// Cost: a few numbers in each averaging, one pass over the parameters in 100 updates and in
/// compare_now(); docs/faults.md has the measured time, below 0.25 % of a small step. Not
/// thread-safe, except for calls from backward.
class ReplicaCheck {
 public:
  ReplicaCheck(
      const PreparedObjects& objects,
      LoopState& loop,
      const ActiveLoaders& active,
      const LocalSgdScopes& local_sgds)
      : objects_(objects), loop_(loop), active_(active), local_sgds_(local_sgds) {}

  /// Watches the models and optimizers that were prepared since the last call. Throws ConfigError
  /// for settings of an optimizer that differ, and for parameters that a model has got since it was
  /// prepared. Collective.
  void watch_prepared();
  /// Compares the passes over loaders and the parameters of all models now. Throws ConfigError in
  /// the name of `where`. Ignores parameters within LocalSgd, unless they `are_averaged`.
  /// Collective.
  void compare_now(const char* where, bool are_averaged = false);
  /// Stops watching.
  void forget();

 private:
  uint64_t digest();
  const LoaderCores& compared_loaders() const;
  std::vector<RankFact> facts() const;
  RankFacts facts_while_alive();
  std::vector<RankFact> parameter_facts() const;
  NamedTensors replicated_parameters() const;
  bool compares_parameters(bool are_averaged) const;
  void compare_settings();
  void find_rates();
  void before_update();
  void expect_known_parameters(const char* where);
  void warn_of_own_data();
  std::vector<double> rates_of(size_t optimizer) const;

  const PreparedObjects& objects_;
  LoopState& loop_;
  const ActiveLoaders& active_;
  const LocalSgdScopes& local_sgds_;
  std::map<const void*, std::set<const void*>> known_;  ///< [model] Parameters at prepare().
  size_t compared_optimizers_ = 0;
  bool is_same_hardware_ = true;
  int64_t updates_at_checksum_ = 0;
  bool has_checksum_ = false;    ///< The last digest has a checksum of the parameters.
  std::vector<bool> has_rates_;  ///< [optimizer] Its class has learning rates.
  bool has_warned_ = false;
  bool has_warned_of_own_data_ = false;
  /// Optimizers and models may outlive this object; their functions hold it weakly.
  std::shared_ptr<const void> alive_ = std::make_shared<int>(0);
};

}  // namespace lockstep
