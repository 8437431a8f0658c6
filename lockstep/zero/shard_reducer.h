// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/sync/gradient_reduction.h"
#include "lockstep/sync/rank_facts.h"
#include "lockstep/zero/gradient_placeholders.h"
#include "lockstep/zero/sharded_model.h"
#include "lockstep/zero/speculative_trigger.h"

namespace lockstep::zero {

/// Detects a backward that would add to gradients that a step has used.
class StaleGradientCheck {
 public:
  /// Marks the present gradients of all slices as stale: a step has used them.
  void mark(const ShardedModel& model);
  void clear() { stale_.clear(); }
  /// Returns whether a slice still has a stale gradient. A gradient that a program has dropped or
  /// written to (zeroed, for instance) does not count.
  bool any_left() const;

 private:
  struct StaleGradient {
    at::Tensor shard_slice;
    const at::TensorImpl* gradient;
    int64_t version;
  };
  std::vector<StaleGradient> stale_;
};

/// Reduces the gradients of a ShardedModel to each rank's shards.
///
/// At most three buckets have full gradients at a time: one is filled, one is sent, one may wait.
/// Autograd's threads call it. Thread safety: see GradientReduction.
class ShardReducer final : private GradientBuckets {
 public:
  /// `model`, `speculative`: must outlive this. `buffers`: those that are broadcast from rank 0.
  /// `model_communicates`: see ShardingOptions.
  ShardReducer(
      ShardedModel& model,
      SpeculativeTrigger& speculative,
      Group group,
      std::vector<at::Tensor> buffers,
      const LowPrecisionPolicy& low_precision_policy,
      bool model_communicates);

  /// Installs hooks on the parameters. `owner`: of this; hooks refer to it weakly.
  void watch(const std::shared_ptr<void>& owner);

  /// The reduction of the running backward: begin, finish, abandon, set_sync.
  GradientReduction& reduction() { return reduction_; }
  /// See Sharding for the functions below.
  void set_facts(RankFacts facts) { facts_ = std::move(facts); }
  bool has_gradients() const;
  /// Drops the gradients of parameters whose `grad` the program has dropped or zeroed, as in one
  /// process. Throws ConfigError if it has assigned others. Call it before gradients are used.
  void apply_drops();
  void drop_gradients();
  void mark_gradients_used() { stale_check_.mark(model_); }
  std::vector<at::Tensor> held_gradients() const;
  std::vector<std::string> without_gradient() const;

 private:
  const std::string& parameter_name(size_t parameter) const override {
    return model_.parameters()[parameter].name;
  }
  bool wants_before_gradient() const override { return true; }
  void before_gradient(size_t parameter) override;
  bool on_gradient(size_t parameter, bool averages) override;
  void begin_reduction() override;
  void start_bucket(size_t index) override;
  void finish_buckets() override;
  void abandon_buckets(bool wait) override;
  void finish_local_backward() override;

  /// Adds the gradient from autograd to the one that this rank holds for the parameter.
  void hold(size_t parameter);
  /// Continues the reductions before bucket `index`, and ends all but the last ones.
  void advance_before(size_t index);
  /// The parameters that the ranks of a group have in common, by index, and in a backward the
  /// flags of those with a gradient.
  struct Common {
    Group group;
    std::vector<size_t> parameters = {};
    bool is_subgroup = false;
    int64_t drops = 0;  ///< Calls of `drop`.
    std::optional<Pending> presence = std::nullopt;
  };

  uint64_t digest(const Common& common) const;
  std::vector<RankFact> facts(const Common& common) const;
  /// Starts the all-reduce of the flags. Collective.
  void start_presence(Common& common);
  void refuse_stale();
  void apply_drop(size_t parameter);
  void drop(size_t parameter);

  ShardedModel& model_;
  SpeculativeTrigger& speculative_;
  std::vector<Common> common_;  ///< All ranks', then the subgroup's if there is one.
  std::vector<at::Tensor> buffers_;
  bool model_communicates_;
  bool holds_in_fp32_;  ///< fp16 and bf16 gradients are held in fp32.
  GradientReduction reduction_;
  std::vector<bool> present_;  ///< [parameter] This rank has a gradient, in this backward or held.
  /// [parameter] fp32 sum of earlier backward passes; undefined if none.
  std::vector<at::Tensor> held_;
  std::vector<bool> had_gradient_;  ///< [parameter] On any rank, since gradients were dropped.
  StaleGradientCheck stale_check_;
  GradientPlaceholders placeholders_;
  /// [parameter] `grad` has a part of the gradient that is not averaged; the shard has the rest.
  std::vector<bool> is_split_;
  RankFacts facts_;
  bool adds_to_stale_ = false;  ///< The running backward, on this rank.
};

}  // namespace lockstep::zero
