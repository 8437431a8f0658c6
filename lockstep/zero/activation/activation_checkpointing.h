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

/// DeepSpeed's section of this name, without partition_activations: that divides inputs that are
/// the same on several ranks, and in data parallelism none are.
struct ActivationCheckpointingOptions {
  /// The inputs of checkpoints wait in the host's memory, pinned beside a CUDA device, for
  /// backward.
  bool cpu_checkpointing = false;
  /// They are copied into memory that is allocated once, for `number_checkpoints` of them.
  bool contiguous_memory_optimization = false;
  /// With contiguous_memory_optimization: checkpoints between a forward and its backward.
  std::optional<int64_t> number_checkpoints = std::nullopt;
  /// The device is waited for before and after each checkpoint, forward and backward.
  bool synchronize_checkpoint_boundary = false;
  /// Their time is added up, for which the device is waited for as well.
  bool profile = false;
};

/// Of all checkpoints together. Backward's includes computing forward again.
struct CheckpointTimes {
  double forward_ms = 0;
  double backward_ms = 0;
  int64_t checkpoints = 0;
};

/// How one checkpoint's inputs are had again from what autograd keeps of them.
class KeptInputs {
 public:
  /// `saved` as they were: device, shape, strides, and which require gradients.
  std::vector<at::Tensor> restored(const std::vector<at::Tensor>& saved) const;

 private:
  friend class ActivationCheckpointing;
  struct Moved {
    at::Device device;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    bool requires_grad;
    std::optional<c10::Event> there;  ///< Behind what copies it to the host, if anything does.
  };
  std::vector<std::optional<Moved>> moved_;  ///< [input] None: saved as it is.
};

/// What becomes of the inputs of activation_checkpoint between forward and backward: see the
/// options. An engine has one of its ds_config.json; other programs open a Scope around their
/// forward. None of it changes a bit.
///
/// Moved are floating-point tensors, other than leaves that require gradients, which the program
/// has anyway. The device's memory is free once the program, too, lets a tensor go. A checkpoint
/// within another is kept as it is, while that one is computed again. Copies to the host run on a
/// stream of their own, beside the forward; those back are made when backward comes to them.
///
/// Thread safety: calls may come from several threads.
class ActivationCheckpointing {
 public:
  /// ConfigError for contiguous_memory_optimization without number_checkpoints of at least 1.
  explicit ActivationCheckpointing(const ActivationCheckpointingOptions& options);

  /// While it lives, activation_checkpoint on this thread goes by the given one; by none, if null.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<ActivationCheckpointing> inner);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<ActivationCheckpointing> outer_;
  };
  /// Null outside of every Scope.
  static std::shared_ptr<ActivationCheckpointing> current();

  /// What autograd is to keep of `inputs`; how to undo it goes into `kept`. ConfigError where
  /// contiguous memory does not suffice.
  std::vector<at::Tensor> keep(const std::vector<at::Tensor>& inputs, KeptInputs& kept);

  enum class Part { kForward, kBackward };
  /// Calls `work`, on `device` (none: the CPU), waiting and measuring as the options have it.
  std::vector<at::Tensor> run(
      Part part,
      std::optional<at::Device> device,
      const std::function<std::vector<at::Tensor>()>& work);

  /// Since the last call; zeros without `profile`.
  CheckpointTimes take_times();

 private:
  bool moves(const at::Tensor& input) const;
  at::Tensor place_for(size_t index, const at::Tensor& flat, bool to_host);
  /// Starts to; what it returns comes behind that.
  c10::Event copy_to_host(const at::Tensor& flat, const at::Tensor& host);

  ActivationCheckpointingOptions options_;
  std::mutex mutex_;
  CheckpointTimes times_;
  std::optional<c10::Stream> stream_;
  /// By argument, and by the device it comes from.
  std::map<std::tuple<size_t, at::DeviceType, at::DeviceIndex>, std::shared_ptr<ContiguousBuffers>>
      slots_;
};

}  // namespace lockstep
