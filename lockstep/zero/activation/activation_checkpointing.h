// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "lockstep/zero/activation/contiguous_buffers.h"

namespace lockstep {

/// Options of DeepSpeed's section activation_checkpointing, without partition_activations. That
/// option shards inputs that several ranks have in common; data-parallel ranks have none.
struct ActivationCheckpointingOptions {
  /// Keeps the inputs of checkpoints in host memory until backward, pinned if the device is CUDA.
  bool cpu_checkpointing = false;
  /// Copies the inputs into memory that is allocated once, for `number_checkpoints` of them.
  bool contiguous_memory_optimization = false;
  /// With contiguous_memory_optimization: checkpoints between a forward and its backward.
  std::optional<int64_t> number_checkpoints = std::nullopt;
  /// Waits for the device before and after each checkpoint, forward and backward.
  bool synchronize_checkpoint_boundary = false;
  /// Sums up the checkpoints' durations; this waits for the device as well.
  bool profile = false;
};

/// Durations of all checkpoints together. Backward's includes the recomputation.
struct CheckpointTimes {
  double forward_ms = 0;
  double backward_ms = 0;
  int64_t checkpoints = 0;
};

/// Restores one checkpoint's inputs from the tensors that autograd has kept.
class KeptInputs {
 public:
  /// Returns `saved` with the original device, shape, strides and requires_grad.
  std::vector<at::Tensor> restored(const std::vector<at::Tensor>& saved) const;

 private:
  friend class ActivationCheckpointing;
  struct Moved {
    at::Device device;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    bool requires_grad;
    std::optional<c10::Event> copied;  ///< Recorded after the copy to the host, if any.
  };
  std::vector<std::optional<Moved>> moved_;  ///< [input] None: saved unchanged.
};

/// Stores the inputs of activation_checkpoint between forward and backward, as its options say. An
/// engine has one for its ds_config.json; other programs open a Scope around their forward. Results
/// are bit-exact with every option.
///
/// Only floating-point tensors are moved, except leaves that require gradients, which the program
/// holds anyway. Device memory is freed only after the program has released the tensor, too. A
/// checkpoint within another is not moved while the outer one is recomputed. Copies to the host run
/// on a separate stream, in parallel with the forward. Copies back start when backward reaches
/// them.
///
/// Thread-safe.
class ActivationCheckpointing {
 public:
  /// Throws ConfigError for contiguous_memory_optimization without number_checkpoints of at least
  /// 1.
  explicit ActivationCheckpointing(const ActivationCheckpointingOptions& options);

  /// RAII scope: activation_checkpoint on this thread uses the given instance; none if null.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<ActivationCheckpointing> inner);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<ActivationCheckpointing> outer_;
  };
  /// Returns the innermost Scope's instance; null outside of every Scope.
  static std::shared_ptr<ActivationCheckpointing> current();

  /// Returns the tensors that autograd is to keep for `inputs`; `kept` gets the information to
  /// restore them. Throws ConfigError if contiguous memory does not suffice.
  std::vector<at::Tensor> keep(const std::vector<at::Tensor>& inputs, KeptInputs& kept);

  enum class Part { kForward, kBackward };
  /// Calls `work`, on `device` (none: the CPU), with the waits and measurements of the options.
  std::vector<at::Tensor> run(
      Part part,
      std::optional<at::Device> device,
      const std::function<std::vector<at::Tensor>()>& work);

  /// Returns the sums since the last call; zeros without `profile`.
  CheckpointTimes take_times();

 private:
  bool moves(const at::Tensor& input) const;
  at::Tensor buffer_for(size_t index, const at::Tensor& flat, bool to_host);
  /// Starts a copy; later work on the returned tensor waits for it.
  c10::Event copy_to_host(const at::Tensor& flat, const at::Tensor& host);

  ActivationCheckpointingOptions options_;
  std::mutex mutex_;
  CheckpointTimes times_;
  std::optional<c10::Stream> stream_;
  /// By argument and its original device.
  std::map<std::tuple<size_t, at::DeviceType, at::DeviceIndex>, std::shared_ptr<ContiguousBuffers>>
      slots_;
};

}  // namespace lockstep
