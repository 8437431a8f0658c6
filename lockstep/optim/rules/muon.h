// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/optim/flat/sharded_rule_call.h"
#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// The names and defaults are torch.optim.Muon's, and those of a group that AdamW updates.
struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;  ///< Taken from the parameter, times lr.
  double momentum = 0.95;
  bool nesterov = true;
  double eps = 1e-7;  ///< Least norm that a matrix is divided by.
  /// Scales steps of a matrix to AdamW's size, 0.2 * sqrt(the larger dimension), so that AdamW's lr
  /// and weight_decay fit. false: scales by sqrt(rows / columns) if that is above 1, as first
  /// published.
  bool match_rms_adamw = false;
  /// Iterates on the product of the matrix with itself, which is smaller, in fp16, or on the CPU in
  /// fp32. false: iterates on the matrix, in bf16.
  bool gram = false;
  /// false: a group of other parameters, which are updated as by AdamW, with lr, weight_decay and
  /// the options below.
  bool use_muon = true;
  std::pair<double, double> betas = {0.9, 0.95};
  double adam_eps = 1e-10;
};

/// Momentum that is nearly orthogonalized, matrix by matrix, by five Newton-Schulz iterations
/// instead of a singular value decomposition.
///
/// For the hidden layers' matrices. Kernels of 2-D convolutions, which have four dimensions, count
/// as matrices of one row for each filter. Embeddings, the last layer, biases and norms need AdamW,
/// in separate groups; muon_groups makes both. It updates one parameter at a time, and reads
/// nothing back to the host. State: one number for each element of a matrix, two for others. If
/// ranks own slices, as under ZeRO, each has the momentum of its slices. One rank gathers a
/// matrix's updates, orthogonalizes them, and returns slices (update_on_owners). Bit-exact with one
/// process, for row-major matrices. Modelled on Keller Jordan et al., "Muon: An optimizer for
/// hidden layers in neural networks", 2024, in torch.optim's form. match_rms_adamw: Liu et al.,
/// "Muon is Scalable for LLM Training", 2025. gram, and the second kind of group: DeepSpeed.
struct MuonRule {
  using Options = MuonOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  /// Throws ConfigError in a group with use_muon for a parameter that is not a matrix.
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static bool needs_full(const Options& options) { return options.use_muon; }
  static void update(const Options& options, const RuleCall& call);
  static void update_sharded(const Options& options, const ShardedRuleCall& call);
};

using Muon = RuleOptimizer<MuonRule>;

/// Returns two groups as DeepSpeed does, or one if the other were empty. The first has parameters
/// of two or four dimensions whose names contain neither "embed" nor "lm_head". The second has all
/// others, with options `others` and use_muon false. A parameter with several names is in the first
/// if all names qualify. Frozen parameters are omitted.
std::vector<Muon::Group> muon_groups(
    const NamedTensors& parameters, MuonOptions matrices, MuonOptions others);

}  // namespace lockstep::optim
