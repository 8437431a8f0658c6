// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/loop/local_sgd_scopes.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"
#include "lockstep/comm/group.h"

namespace lockstep::internal {

/// Finds trained tensors of no prepared model in the graphs of losses.
///
/// The tensors that a loss depends on are read from its graph, in the first backward passes only.
/// Cost: in 4 backward passes a walk through the graph, in all but the first an all_gather of 16
/// bytes, and a checksum of such tensors if there are any.
class UnpreparedLeaves {
 public:
  /// Reads the graph of a loss before its backward. `prepared`: the parameters of prepared models.
  void read_graph(const at::Tensor& loss, const std::set<const void*>& prepared);
  /// Compares the leaves that the last two graphs have in common, after that backward. Collective.
  void compare(Group& group);
  /// Returns whether no further check is needed.
  bool is_finished() const { return checks_ >= kMaxChecks; }

 private:
  static constexpr int kMaxChecks = 4;

  int checks_ = 0;
  /// Leaves of the last graph; kept, so that their addresses are not reused.
  std::vector<at::Tensor> last_leaves_;
  std::vector<at::Tensor> in_both_graphs_;  ///< Leaves that the last two graphs share.
};

/// Detects models that each process would train on its own because prepare() did not get them.
///
/// A second model whose optimizer was not passed to prepare trains separately in each process, and
/// nothing else detects that. It causes a warning, not an error, since some programs have
/// parameters that should differ. Those of a prepared optimizer are compared before its updates,
/// until they have gradients. Cost: that of UnpreparedLeaves, and an all-gather in each of these
/// comparisons.
class UnpreparedModelCheck final : public TrainingStepObserver {
 public:
  UnpreparedModelCheck(
      const PreparedObjects& objects, const TrainingStep& step, const LocalSgdScopes& local_sgds)
      : objects_(objects), step_(step), local_sgds_(local_sgds) {}

  /// Throws ConfigError for a loss of several processes without any prepared model.
  void loss_given(const GivenLoss& given) override;
  /// Warns if that graph had trained parameters that differ between processes. Collective.
  void backward_ended() override;
  void backward_abandoned() noexcept override { has_read_graph_ = false; }
  /// Throws ConfigError if the optimizer's parameters of no prepared model differ between
  /// processes. Collective until their first gradients.
  void gradients_complete(const Optimizer& optimizer) override;
  void objects_forgotten() override { equal_optimizers_.clear(); }

 private:
  void expect_model() const;
  bool must_compare() const;
  bool agree(const std::vector<at::Tensor>& parameters) const;

  const PreparedObjects& objects_;
  const TrainingStep& step_;
  const LocalSgdScopes& local_sgds_;
  UnpreparedLeaves leaves_;
  bool has_read_graph_ = false;             ///< Of the running backward.
  std::set<const void*> equal_optimizers_;  ///< That need no further check.
};

}  // namespace lockstep::internal
