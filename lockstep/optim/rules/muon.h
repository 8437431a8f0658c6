// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/optim/flat/sharded_batch.h"
#include "lockstep/optim/rule_optimizer.h"

namespace lockstep::optim {

/// torch.optim.Muon's, by its names and defaults, and of a group that is not orthogonalised.
struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;  ///< Taken from the parameter, times lr.
  double momentum = 0.95;
  bool nesterov = true;
  double eps = 1e-7;  ///< Least norm that a matrix is divided by.
  /// Steps of a matrix are as large as AdamW's (0.2 * sqrt(the larger dimension)), so that its lr
  /// and weight_decay fit; false: sqrt(rows / columns) where that is more than 1, as first
  /// published.
  bool match_rms_adamw = false;
  /// Iterates on the product of the matrix with itself, which is smaller: fp16, or on the CPU fp32.
  /// false: on the matrix, in bf16.
  bool gram = false;
  /// false: a group of other parameters, which are updated as by AdamW, with lr and weight_decay
  /// above and what follows.
  bool use_muon = true;
  std::pair<double, double> betas = {0.9, 0.95};
  double adam_eps = 1e-10;
};

/// Momentum whose every matrix is made orthogonal, or nearly, before it is a step: five
/// Newton-Schulz iterations in place of a singular value decomposition.
///
/// For the hidden layers' matrices; kernels of 2-D convolutions, which have four dimensions, count
/// as matrices of one row a filter. Embeddings, the last layer, biases and norms want AdamW, in
/// groups of their own; muon_groups makes both. One parameter at a time, nothing is read back to
/// the host. State of a matrix: one number an element; of others two. Where ranks have slices, as
/// under ZeRO, each has the momentum of its own; a matrix's updates come together on one rank,
/// which makes them orthogonal, and go back (update_on_owners): the bits of one process, for
/// matrices that lie row by row. After: Keller Jordan et al., "Muon: An optimizer for hidden layers
/// in neural networks", 2024, in torch.optim's form; Liu et al., "Muon is Scalable for LLM
/// Training", 2025 (match_rms_adamw); DeepSpeed (gram, the second kind of group).
struct MuonRule {
  using Options = MuonOptions;
  static RuleTraits traits();
  static NamedOptions named(Options& options);
  static void check(const Options& options);
  /// ConfigError for a parameter that is no matrix in a group with use_muon.
  static StateShape shape(const Options& options, at::IntArrayRef sizes, size_t field);
  static bool needs_full(const Options& options) { return options.use_muon; }
  static void update(const Options& options, const Batch& batch);
  static void update_sharded(const Options& options, const ShardedBatch& batch);
};

using Muon = RuleOptimizer<MuonRule>;

/// Two groups, or one if the other were empty: as DeepSpeed divides them, parameters of two or four
/// dimensions whose names have neither "embed" nor "lm_head" in them, and all others, which get
/// `others` with use_muon false. One of several names is no hidden matrix if any of them says so.
/// Frozen ones are left out.
std::vector<Muon::Group> muon_groups(
    const NamedTensors& parameters, MuonOptions matrices, MuonOptions others);

}  // namespace lockstep::optim
