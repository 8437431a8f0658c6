// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/zero/coordinator/flat_param_buffer.h"
#include "lockstep/zero/coordinator/param_coordinator.h"

namespace lockstep::zero {

/// Builds a model of which no rank ever has all: a tensor of some size is whole only while it is
/// initialised. When the next one is made, it is cut, and each rank keeps a part of rank 0's
/// values.
///
/// What an operation makes from nothing (`torch::empty`, `torch::randn`), or of other tensors
/// (`torch::randn(...) * 0.02`), between construction of a InitInterceptScope with this and its end
/// counts, if it is floating point; a module's parameters are such. What comes in another way (of
/// operations that give several tensors, from_blob) stays whole until `divide`. All ranks must
/// build the same. Sharding takes the parts of what it divides over. Whatever else lies here (a
/// second model, buffers) comes when an operation touches it, on all ranks, for as long as this
/// lives, or who has got it by `release`; `make_whole` is for what shall stay.
///
/// Memory: 1/N of what is in use, and its largest tensor, with what that is computed from. Sends 2
/// (N-1)/N of the model from each rank, where a tensor is initialised before the next is made and
/// Sharding lays it out: a broadcast here, an all-gather there; as much again whenever values are
/// changed later. Thread safety: none. After DeepSpeed's zero.Init.
class Init final : public InitInterceptor {
 public:
  /// Tensors come to be on `device`, those that operations make without values, too: these must not
  /// be filled through pointers unless that is the CPU. Smaller ones than `min_elements` stay
  /// whole, and where they are.
  Init(Group group, at::Device device, int64_t min_elements);
  ~Init() override;

  at::Tensor take(const at::Tensor& made, bool has_values) override;
  /// Those of `tensors` that were not, and are as `take` wants them, unless two have memory in
  /// common. The same tensors afterwards. On all ranks alike; collective.
  void divide(const std::vector<at::Tensor>& tensors);
  /// What was built last is divided, too, and parts of tensors that nobody holds on any rank are
  /// dropped. Collective.
  void finish();
  /// Those of `tensors` that were built here have all their values on all ranks from now on, and
  /// are the same tensors. Collective.
  void make_whole(const std::vector<at::Tensor>& tensors);

  /// A tensor in parts, for another Pager; that takes what is written there as equal on all ranks.
  struct Part {
    std::unique_ptr<ShardedUnit> part;
    std::string name;
  };
  /// Finishes, and gives up the parts of what is held on any rank: a Pager beside the one that
  /// training has would wait for ranks that serve that one. This is empty then, and builds no more.
  /// Collective.
  std::vector<Part> release();
  /// Elements that were whole at a time.
  int64_t max_live_elements_seen() const { return coordinator_->max_live_elements_seen(); }

 private:
  class Built;
  bool takes(const at::Tensor& made) const;
  std::vector<bool> held_anywhere();

  Group group_;
  at::Device device_;
  int64_t min_elements_;
  std::vector<std::unique_ptr<Built>> parts_;
  std::unique_ptr<ParamCoordinator> coordinator_;
};

}  // namespace lockstep::zero
