// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/flat/grad_bucket.h"

namespace lockstep {

/// Compression of the gradients of a bucket for communication; PyTorch's comm hooks.
enum class CommHookType { kNone, kFp16, kBf16, kPowerSgd, kBatchedPowerSgd };

/// Returns "none", "fp16", "bf16", "power_sgd" or "batched_power_sgd".
const char* name_of(CommHookType type);

/// The options of PyTorch's PowerSGDState, with its names and defaults. `start_iter` may be 0 or 1,
/// since buckets never change here.
struct PowerSgdOptions {
  /// The number of columns and rows that are sent for a matrix of gradients.
  int64_t matrix_approximation_rank = 1;
  /// The number of averaging backward passes at the start that are not compressed.
  int64_t start_iter = 1000;
  /// A rows x cols matrix is compressed only if (rows + cols) * rank * this < rows * cols.
  double min_compression_rate = 2;
  /// Starts each power iteration from the previous result instead of random numbers.
  bool warm_start = true;
  /// Added to the norm of a column before dividing by it. Zero columns are safe with 0.
  double orthogonalization_epsilon = 0;
  uint64_t seed = 0;

  bool operator==(const PowerSgdOptions&) const = default;
};

struct CommHookOptions {
  CommHookType type = CommHookType::kNone;
  /// kFp16 or kBf16 in addition to either PowerSGD: all its messages are 16-bit, including
  /// uncompressed ones.
  CommHookType wrapper = CommHookType::kNone;
  /// Keeps the compression error and adds it to the next gradients. By default true for PowerSGD,
  /// which needs it to converge, and false for fp16 and bf16, as in PyTorch. For those it costs
  /// four bytes per gradient, and matters if many updates are below the rounding.
  std::optional<bool> use_error_feedback = std::nullopt;
  PowerSgdOptions power_sgd = {};
};

/// The state of a hook between backward passes.
struct CommHookState {
  /// The number of averaging backward passes so far.
  int64_t iteration = 0;
  /// "error/<parameter>": this rank's compression error, different on each rank. "q/<parameter>"
  /// ("q/bucket<i>" for batched PowerSGD): the same on every rank.
  NamedTensors tensors;
};

/// Averages the buckets of one model, compressed or not.
///
/// In the 16-bit types gradients are divided by the number of ranks before they are rounded, so
/// their sum does not overflow. A gradient that float16 cannot hold becomes inf on every rank, so
/// that a GradScaler detects it. Gradients that have 16 bits already are not compressed by kFp16
/// and kBf16. PowerSGD sends two messages per bucket, the second dependent on the first: the first
/// overlaps with backward, the second is sent after it, in the order of buckets. The flags of a
/// bucket are exact in every format.
///
/// Non-finite gradients stay non-finite, and do not change the error memory. The error memory is in
/// units of the gradients, so after a change of the loss scale it is wrong by that factor for one
/// step.
///
/// Memory: fp16 and bf16 half a float32 gradient; error feedback one compressed gradient, in
/// float32 at least. Modelled on Vogels et al., "PowerSGD", NeurIPS 2019, and
/// torch/distributed/algorithms/ddp_comm_hooks. Gram-Schmidt, done twice, makes columns orthonormal
/// at any rank, where PyTorch uses QR above rank 2. It keeps a matrix of lower rank exact.
class CommHook {
 public:
  CommHook() = default;
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Starts to average a bucket. Call it once per backward for each bucket, in order of index.
  virtual void start(size_t bucket) = 0;
  /// Blocks until all buckets hold averages. Throws CommError.
  virtual void finish() = 0;
  /// Drops started operations; with `wait`, after none is running in the buckets any more.
  virtual void abandon(bool wait) noexcept = 0;
  /// Returns the live tensors, which the next backward changes. Empty for kNone.
  virtual CommHookState state() const = 0;
  /// Throws ConfigError if `state` has an unknown tensor, or one of another shape; changes nothing.
  virtual void check_state(const CommHookState& state) const = 0;
  /// Continues from `state`, bit-exact. A tensor that `state` lacks starts from zero. Throws as
  /// check_state, before any change.
  virtual void load_state(const CommHookState& state) = 0;
};

/// Throws ConfigError, with the reason, for options that are out of range or contradictory.
void check_options(const CommHookOptions& options);

/// Creates the hook of `options`. `buckets` must outlive it; they were planned from `parameters`.
std::unique_ptr<CommHook> make_comm_hook(
    const CommHookOptions& options,
    Group group,
    const std::vector<flat::GradBucket>& buckets,
    const NamedTensors& parameters);

}  // namespace lockstep
