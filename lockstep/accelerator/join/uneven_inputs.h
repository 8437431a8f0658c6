// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/backward/collective_scope.h"
#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/options/call_options.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"

namespace lockstep::internal {

/// Runs loops in which processes have different numbers of batches, and makes the processes equal
/// afterwards; see Accelerator::join_uneven_inputs.
class UnevenInputs {
 public:
  UnevenInputs(
      PreparedObjects& objects,
      TrainingStep& step,
      ActiveLoaders& active,
      Gradients& gradients,
      const LocalSgdScopes& local_sgds)
      : objects_(objects),
        step_(step),
        active_(active),
        gradients_(gradients),
        local_sgds_(local_sgds) {}

  /// Begins a loop, which must be over before the scope's finish(). This must outlive the scope.
  /// Throws ConfigError for a mode of training in which all processes must take part in each
  /// update. Collective.
  CollectiveScope begin(const JoinUnevenInputs& options);

 private:
  void check_mode() const;
  void make_equal();
  void make_scalers_equal();

  PreparedObjects& objects_;
  TrainingStep& step_;
  ActiveLoaders& active_;
  Gradients& gradients_;
  const LocalSgdScopes& local_sgds_;
};

}  // namespace lockstep::internal
