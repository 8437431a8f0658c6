// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/flat/grad_bucket.h"

namespace lockstep {

/// How the gradients of a bucket are compressed on their way; PyTorch's comm hooks.
enum class CommHookType { kNone, kFp16, kBf16, kPowerSgd, kBatchedPowerSgd };

/// "none", "fp16", "bf16", "power_sgd", "batched_power_sgd".
const char* name_of(CommHookType type);

/// The names, defaults and meanings of PyTorch's PowerSGDState, except that `start_iter` may be 0
/// or 1 (buckets never change here).
struct PowerSgdOptions {
  /// A matrix of gradients travels as this many columns and rows.
  int64_t matrix_approximation_rank = 1;
  /// So many averaged backwards go uncompressed first.
  int64_t start_iter = 1000;
  /// A rows x cols matrix is compressed only if (rows + cols) * rank * this < rows * cols.
  double min_compression_rate = 2;
  /// Starts each power iteration from the last one's result instead of from random numbers.
  bool warm_start = true;
  /// Added to the norm of a column that is about to be divided by it. Zero columns are safe with 0.
  double orthogonalization_epsilon = 0;
  uint64_t seed = 0;

  bool operator==(const PowerSgdOptions&) const = default;
};

struct CommHookOptions {
  CommHookType type = CommHookType::kNone;
  /// kFp16 or kBf16 on top of either PowerSGD: all its messages travel in 16 bits, the uncompressed
  /// ones too.
  CommHookType wrapper = CommHookType::kNone;
  /// Whether what compression loses is kept and added to the next gradients. Unset: true for
  /// PowerSGD, which needs it to converge; false for fp16 and bf16, as in PyTorch, where it costs
  /// four bytes a gradient and matters when many updates are below the rounding.
  std::optional<bool> use_error_feedback = std::nullopt;
  PowerSgdOptions power_sgd = {};
};

/// What a hook remembers between backwards.
struct CommHookState {
  /// Averaged backwards so far.
  int64_t iteration = 0;
  /// "error/<parameter>": what this rank has still to send, differs between ranks. "q/<parameter>"
  /// ("q/bucket<i>" for batched PowerSGD): the same on every rank.
  NamedTensors tensors;
};

/// Averages the buckets of one model, compressed or not.
///
/// In the 16-bit types gradients are divided by the number of ranks before they are rounded, so
/// their sum does not overflow; a gradient float16 cannot hold becomes inf on every rank, for a
/// GradScaler to see. Gradients that have 16 bits already are not compressed by kFp16 and kBf16.
/// PowerSGD sends two messages a bucket, the second dependent on the first: the first overlaps
/// with backward, the second is sent after it, in the order of buckets. The flags of a bucket
/// survive all of them.
///
/// Not finite gradients come out not finite, and leave nothing behind in the error memory. It is in
/// the units of the gradients, so it is off by the factor for one step after a loss scale changes.
///
/// Memory: fp16 and bf16 half a float32 gradient, error feedback one gradient of the compressed
/// (float32 at least). After: Vogels et al., "PowerSGD", NeurIPS 2019, and
/// torch/distributed/algorithms/ddp_comm_hooks. Columns are made orthonormal by Gram-Schmidt,
/// twice, at any rank, where PyTorch uses QR above rank 2; that keeps a matrix of lower rank exact.
class CommHook {
 public:
  CommHook() = default;
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Starts to average a bucket; each once a backward, in order of index.
  virtual void start(size_t bucket) = 0;
  /// Returns when all buckets hold averages. Throws CommError.
  virtual void finish() = 0;
  /// Forgets what was started; with `wait`, once nothing is under way in the buckets any more.
  virtual void abandon(bool wait) noexcept = 0;
  /// Tensors are the live ones: they change with the next backward. Empty for kNone, which
  /// remembers nothing.
  virtual CommHookState state() const = 0;
  /// Throws ConfigError if `state` has a tensor that is not known here or is shaped differently;
  /// changes nothing.
  virtual void check_state(const CommHookState& state) const = 0;
  /// Goes on from `state`, bit for bit. A tensor it lacks starts afresh. Throws as check_state,
  /// before anything is changed.
  virtual void load_state(const CommHookState& state) = 0;
};

/// Throws ConfigError, with the reason, for options that are out of range or do not go together.
void check_options(const CommHookOptions& options);

/// `buckets` must outlive the hook; `parameters` are those the buckets were planned from.
std::unique_ptr<CommHook> make_comm_hook(
    const CommHookOptions& options,
    Group group,
    const std::vector<flat::GradBucket>& buckets,
    const NamedTensors& parameters);

}  // namespace lockstep
