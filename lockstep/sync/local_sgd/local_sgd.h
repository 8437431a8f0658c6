// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/sync/data_parallel.h"

namespace lockstep {

struct LocalSgdOptions {
  /// Applied optimizer steps between two averagings of parameters.
  int64_t local_sgd_steps = 8;
  /// False: plain data parallel; every call does nothing.
  bool enabled = true;
  /// Applied steps of plain data parallel at the start (post-local SGD, Lin et al. 2018).
  int64_t warmup_steps = 0;
  /// Averages floating-point buffers, and broadcasts others from rank 0. False: each rank keeps its
  /// own, as in Accelerate.
  bool average_buffers = true;
};

/// Lets every rank step with its own gradients, and averages parameters periodically.
///
/// Gradients of `model` stay local, regardless of set_sync. The parameters are averaged after every
/// `local_sgd_steps` applied steps and by `finish()`; frozen ones are skipped, one under two names
/// is averaged once, float16 and bfloat16 are averaged in float32. All ranks must take the same
/// number of steps.
///
/// With a period of 1 data parallel averages gradients instead. For plain SGD from equal parameters
/// the mean of p - lr*g_i is p - lr*mean(g_i). But only averaged gradients are bit-exact with data
/// parallel, overlap with backward, and keep other optimizers' states equal.
///
/// Sends 2(N-1)/N * parameter bytes a period and rank (ring), in a few flat messages. Memory: one
/// bucket of 25 MiB while averaging. The destructor and `abandon()` never communicate: after an
/// exception ranks keep their own parameters. Modelled on Stich, "Local SGD
/// Converges Fast and Communicates Little", ICLR 2019.
class LocalSgdCore {
 public:
  /// Keeps `model`, which has `parameters` and `buffers`, alive. `also_average`: further tensors to
  /// average, such as momenta, each name once; integers are broadcast from rank 0. Ranks may have
  /// different ones (a parameter used on one rank only has no momentum elsewhere): a tensor that
  /// some rank lacks is not averaged. Throws ConfigError for a count out of range, and for a model
  /// with a comm hook that would never be used.
  LocalSgdCore(
      std::shared_ptr<DataParallel> model,
      const NamedTensors& parameters,
      const NamedTensors& buffers,
      Group group,
      LocalSgdOptions options = {},
      std::function<NamedTensors()> also_average = nullptr);
  /// Calls abandon().
  ~LocalSgdCore();
  LocalSgdCore(const LocalSgdCore&) = delete;
  LocalSgdCore& operator=(const LocalSgdCore&) = delete;

  /// Call it after each applied optimizer step (not a skipped or accumulated one). Returns whether
  /// it averaged, so that the caller can reset optimizer state; collective then, and throws
  /// CommError.
  bool step();
  /// Averages now, for instance for a checkpoint, unless no step followed the last averaging; the
  /// period continues unchanged. Returns whether it averaged. Collective.
  bool average();
  /// Averages, also without a step since the last averaging, then lets gradients be averaged again.
  /// Returns whether it averaged. Further calls do nothing. Collective.
  bool finish();
  /// Lets gradients be averaged again; parameters are unchanged.
  void abandon() noexcept;

  /// The number of applied steps: the complete state.
  int64_t steps() const { return steps_; }
  /// Continues as after `steps` steps, with parameters that are equal on all ranks (after
  /// `average`, or from a checkpoint).
  void load_steps(int64_t steps);

 private:
  bool averages_parameters() const;

  std::shared_ptr<DataParallel> model_;
  std::vector<at::Tensor> floating_;
  std::vector<at::Tensor> others_;
  Group group_;
  LocalSgdOptions options_;
  std::function<NamedTensors()> also_average_;
  int64_t steps_ = 0;
  bool dirty_ = false;  ///< Parameters may differ between ranks.
  bool active_ = true;
};

}  // namespace lockstep
