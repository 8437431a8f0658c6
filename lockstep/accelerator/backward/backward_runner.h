// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/options/call_options.h"
#include "lockstep/sync/backward_hooks.h"

namespace lockstep::internal {

class Gradients;
class LocalSgdScopes;
class TrainingStep;
struct GivenLoss;
struct PreparedObjects;

/// Callbacks of a backward that the program calls itself. Each is called on an autograd thread,
/// once per backward; an exception propagates out of the backward. Each may be empty.
struct BackwardCallbacks {
  std::function<void()> begins = nullptr;  ///< Before the differentiation.
  /// When this rank's gradients are computed, before averaging is awaited.
  std::function<void()> computed = nullptr;
  std::function<void()> ends = nullptr;  ///< After averaging, or its failure.
};

/// Runs backward passes, and completes those that the program starts itself: scales the loss, and
/// averages the gradients. Not thread-safe, except for the callbacks of autograd.
class BackwardRunner {
 public:
  BackwardRunner(
      PreparedObjects& objects,
      TrainingStep& step,
      Gradients& gradients,
      LocalSgdScopes& local_sgds)
      : objects_(objects), step_(step), gradients_(gradients), local_sgds_(local_sgds) {}

  /// See Accelerator::backward.
  void backward(const at::Tensor& loss, const BackwardOptions& options);
  void backward(const at::Tensor& loss_sum, double count);
  /// See Accelerator::scale_loss. `callbacks` are called in the backward of the returned loss.
  at::Tensor scale_loss(const at::Tensor& loss, BackwardCallbacks callbacks = {});
  /// See Accelerator::average_gradients.
  void average_gradients();

  /// Calls `check` at the first gradient that a loss not returned by scale_loss() produces in a
  /// prepared model. `check` throws if that gradient would be wrong. For the engine.
  void watch_unscaled_backward(std::function<void()> check);

  /// Installs hooks on the models that were prepared since the last call.
  void watch_prepared();
  /// Removes the hooks from the models.
  void remove_hooks();

 private:
  /// The caller of the running backward: this class, or the program, on a scaled loss.
  enum class Caller { kNone, kRunner, kProgram };
  /// The hooks that detect the backward of an unscaled loss.
  struct Watch {
    std::unique_ptr<BackwardHooks> hooks;
    bool set_by_engine = false;  ///< By watch_unscaled_backward.
    size_t models = 0;           ///< Else: the number of watched models.
    int accepted = -1;  ///< Autograd's number of the last unscaled backward that passed the check.
  };

  at::Tensor begin(const GivenLoss& given, double factor);
  void run(const GivenLoss& given, double factor, const BackwardOptions& options = {});
  void abandon() noexcept;
  void abandon_program_backward() noexcept;
  void leave_program_backward() noexcept;
  void on_program_backward_begin(const BackwardCallbacks& callbacks);
  void on_program_backward_end(const BackwardCallbacks& callbacks);
  void set_hooks(std::function<void()> check);
  void on_gradient(const std::function<void()>& check);
  void refuse_unscaled_backward() const;

  PreparedObjects& objects_;
  TrainingStep& step_;
  Gradients& gradients_;
  LocalSgdScopes& local_sgds_;
  Caller caller_ = Caller::kNone;
  int program_backward_ = -1;  ///< Autograd's number of the program's backward.
  Watch watch_;
  /// Hooks hold it weakly, to detect that this object is destroyed.
  std::shared_ptr<const void> alive_ = std::make_shared<int>(0);
};

}  // namespace lockstep::internal
