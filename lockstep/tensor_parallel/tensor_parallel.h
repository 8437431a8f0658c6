// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/tensor_parallel/style.h"

namespace lockstep {

/// Which layers the ranks of a tp line divide, and how.
struct TensorParallelOptions {
  TensorPlan plan = {};
  /// Divides activations between divided layers along the sequence, their last dimension but one:
  /// norms, dropout and residuals take 1/tp of the memory and time. The bytes sent are the same.
  /// Each parameter needs a rule then.
  bool sequence_parallel = false;
  /// Computes the model on a small batch, the same on all ranks. prepare() compares its result
  /// before and after the division, without dropout; then a rank may have a part of it. Required: a
  /// model that computes its number of heads from a constant would become another function without
  /// an error.
  std::function<at::Tensor()> example = nullptr;
  /// Allows a plan without an example.
  bool without_example = false;
};

namespace tensor_parallel {

struct DividedParam;

/// The modules of a model: their names ("layers.0") and their classes.
using ModuleClasses = std::vector<std::pair<std::string, std::string>>;

/// Divides the parameters of one model among the ranks of a group, each in place.
///
///   TensorParallel divided(model->named_parameters(), modules, {.plan = {...}}, mesh.tensor);
///
/// Afterwards the same modules compute with the parts: see install_dispatch() for what an operation
/// on a divided weight does. Parameters outside the plan stay whole, and must be equal on all
/// ranks.
///
/// Once this object is destroyed, using a divided weight is an error: it stays a part. Not
/// thread-safe.
class TensorParallel {
 public:
  /// Collective in nothing: each rank keeps its part of the full values that all ranks have. Throws
  /// ConfigError for a rule that no module matches, a module of another kind than Linear and
  /// Embedding, one that multiplies its weight by a fixed number of heads (MultiheadAttention), and
  /// sizes that the ranks do not divide.
  TensorParallel(
      const NamedTensors& parameters,
      const ModuleClasses& modules,
      const TensorParallelOptions& options,
      const Group& group);
  ~TensorParallel();
  TensorParallel(const TensorParallel&) = delete;
  TensorParallel& operator=(const TensorParallel&) = delete;

  const Group& group() const { return group_; }
  bool divides(const at::Tensor& parameter) const;
  /// Returns the sizes of the full parameter; its own if it is whole.
  std::vector<int64_t> full_sizes(const at::Tensor& parameter) const;
  /// Returns the full tensor of a tensor of the parameter's own sizes: itself, its gradient, or
  /// its optimizer state. Collective if the parameter is divided.
  at::Tensor full(const at::Tensor& parameter, const at::Tensor& own);
  /// Returns the rank's part of a tensor of the parameter's full sizes.
  at::Tensor own_part(const at::Tensor& parameter, const at::Tensor& full) const;
  /// Throws ConfigError if a parameter has lost its mark, because the program moved or replaced it.
  void expect_marked() const;

 private:
  struct Entry {
    at::Tensor parameter;
    std::shared_ptr<const DividedParam> info;
  };
  struct Accumulators;
  Entry* find(const at::Tensor& parameter);
  const Entry* find(const at::Tensor& parameter) const;
  void apply_rule(
      const TensorRule& rule, const std::string& module, const NamedTensors& parameters);
  void divide(const NamedTensor& parameter, std::shared_ptr<const DividedParam> info);
  static void tie(Entry& entry, std::shared_ptr<const DividedParam> info);
  void sum_gradient(const at::Tensor& parameter);

  Group group_;
  std::shared_ptr<const Group> hooked_;         ///< That of the hooks, which end with this object.
  std::unique_ptr<Accumulators> accumulators_;  ///< Of the parameters whose gradients are added.
  bool sequence_parallel_;
  std::vector<Entry> entries_;                     ///< The divided ones, and those of sequences.
  std::unordered_map<const void*, size_t> index_;  ///< Of a parameter in `entries_`.
};

}  // namespace tensor_parallel
}  // namespace lockstep
