// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/comm/group.h"
#include "lockstep/flat/shard_bounds.h"
#include "lockstep/optim/flat/flat_parameter_group.h"
#include "lockstep/optim/flat/parameter_state.h"
#include "lockstep/optim/flat/update_rule.h"

namespace lockstep::optim {

/// A parameter that an update may need in full, while ranks own slices of it.
struct FullParameter {
  flat::ShardBounds bounds;
  at::TensorOptions options;   ///< The slices'.
  std::optional<size_t> item;  ///< This rank's slice, if it has one.
};

/// Returns `groups` with each parameter once. Throws ConfigError, naming `rule`, for a parameter in
/// two groups, a parameter that cannot be updated, and no parameters.
std::vector<torch::optim::OptimizerParamGroup> checked_groups(
    const char* rule, std::vector<torch::optim::OptimizerParamGroup> groups);

/// The parameter groups of one optimizer in flat buffers, with their options, state and rule.
class FlatParameterGroups {
 public:
  /// `groups` must outlive this.
  FlatParameterGroups(
      std::shared_ptr<const UpdateRule> rule,
      std::vector<torch::optim::OptimizerParamGroup>& groups)
      : rule_(std::move(rule)), param_groups_(&groups) {}
  /// Replaces `groups` by the same groups, which have moved with their optimizer.
  void set_param_groups(std::vector<torch::optim::OptimizerParamGroup>& groups) {
    param_groups_ = &groups;
  }

  const std::shared_ptr<const UpdateRule>& rule() const { return rule_; }
  size_t group_count() const { return groups_.size(); }
  FlatParameterGroup& flat(size_t group) { return groups_[group].flat; }
  const FlatParameterGroup& flat(size_t group) const { return groups_[group].flat; }
  torch::optim::OptimizerOptions& options(size_t group) {
    return (*param_groups_)[group].options();
  }
  bool needs_full(size_t group) { return rule_->needs_full(options(group)); }

  /// Lays out parameters that were added to the groups. Throws ConfigError for invalid ones.
  void adopt();
  /// Returns whether follow_parameters() would lay out a group again.
  bool has_moved_parameters() const;
  /// Lays out moved parameters and their state again, for instance on another device.
  void follow_parameters();
  /// Moves all parameters and state, and later ones, to memory that the ranks of `ranks` share.
  /// Collective.
  void share(const Group& ranks);
  bool is_shared() const { return sharing_group_.has_value(); }
  /// Replaces the parameters by `slices`, [group][buffer]. `ranks` own the other slices. Throws
  /// ConfigError if a parameter has state, or is shared.
  void use_shard_slices(
      const std::vector<std::vector<BufferSlices>>& slices,
      const std::optional<Group>& ranks,
      bool fp32_state);
  /// Returns the parameters that ranks have slices of, equally on all ranks.
  const std::vector<FullParameter>& full_parameters(size_t group) const {
    return groups_[group].full_parameters;
  }

  /// Throws ConfigError if a parameter was resized, or a gradient does not fit.
  void check_gradients() const;
  /// Creates missing state of `item` of `group`, and returns whether any was missing. Throws
  /// ConfigError while capturing.
  bool create_missing_state(size_t group, FlatParameter& item);
  /// Creates the state of all parameters of rules that have it before the first step.
  void create_eager_state();
  /// Creates state that options enabled later need.
  void complete_state();
  /// Returns the state; its tensors are not copied.
  ParameterState state_of(const at::Tensor& parameter) const;
  void set_state(const at::Tensor& parameter, const ParameterState& state);
  /// Returns the sizes of the parameter, or of the one that it is a slice of.
  const std::vector<int64_t>& full_sizes(const at::Tensor& parameter) const;

 private:
  struct LaidOutGroup {
    FlatParameterGroup flat;
    std::vector<at::TensorImpl*> adopted;  ///< In the order of the parameter group.
    std::vector<FullParameter> full_parameters;
  };
  struct Position {
    size_t group = 0;
    size_t item = 0;
  };

  void add_group(size_t group);
  /// Returns the parameters of a group that are not laid out yet.
  std::vector<at::Tensor> added_parameters(size_t group) const;
  /// Throws ConfigError for an added parameter that the group's rule cannot, or can no longer,
  /// update.
  void check_added(size_t group, const std::vector<at::Tensor>& added);
  void add_full_parameters(size_t group, const BufferSlices& slices, const Group& ranks);
  void check_sizes(const FlatParameter& item) const;
  Position find(const at::Tensor& parameter) const;
  const char* rule_name() const { return rule_->traits().name; }

  std::shared_ptr<const UpdateRule> rule_;
  std::vector<torch::optim::OptimizerParamGroup>* param_groups_;
  std::vector<LaidOutGroup> groups_;
  std::optional<Group> sharing_group_;
  bool has_shard_slices_ = false;
};

}  // namespace lockstep::optim
