// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/options/backward_options.h"
#include "lockstep/sync/backward_hooks.h"

namespace lockstep {

class ActiveLoaders;
class GradientAccumulation;
class Gradients;
class LocalSgdScopes;
class MixedPrecision;
class StateOffloader;
class UnpreparedModelCheck;
class UnpreparedUpdateCheck;
struct LoopState;
struct PreparedObjects;

/// Callbacks of a backward that the program calls itself. Each is called on an autograd thread,
/// once per backward; an exception propagates out of the backward. Each may be empty.
struct BackwardCallbacks {
  std::function<void()> begins = nullptr;  ///< Before the differentiation.
  /// When this rank's gradients are computed, before averaging is awaited.
  std::function<void()> computed = nullptr;
  std::function<void()> ends = nullptr;  ///< After averaging, or its failure.
};

/// The objects that take part in a backward.
struct BackwardParts {
  PreparedObjects& objects;
  LoopState& loop;
  ActiveLoaders& active;
  GradientAccumulation& accumulation;
  Gradients& gradients;
  MixedPrecision& precision;
  StateOffloader& offloader;
  LocalSgdScopes& local_sgds;
  UnpreparedModelCheck& model_check;
  UnpreparedUpdateCheck& update_check;
};

/// Runs backward passes, and completes those that the program starts itself: scales the loss,
/// averages the gradients, and checks conditions before and after. Not thread-safe, except for the
/// callbacks of autograd.
class BackwardRunner {
 public:
  explicit BackwardRunner(const BackwardParts& parts) : parts_(parts) {}

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
  /// Lets `ends_update` decide whether a backward is the last of an update. For the engine, which
  /// counts micro-steps itself.
  void set_ends_update(std::function<bool()> ends_update);

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

  double accumulation_factor() const;
  at::Tensor scaled(const at::Tensor& loss, double factor);
  void run(const at::Tensor& loss, double factor, const BackwardOptions& options = {});
  void abandon() noexcept;
  void abandon_program_backward() noexcept;
  void leave_program_backward() noexcept;
  void note_loss(const at::Tensor& loss, double factor = 1);
  void on_program_backward_begin(const BackwardCallbacks& callbacks);
  void on_program_backward_end(const BackwardCallbacks& callbacks);
  void set_hooks(std::function<void()> check);
  void on_gradient(const std::function<void()>& check);
  void refuse_unscaled_backward() const;

  BackwardParts parts_;
  Caller caller_ = Caller::kNone;
  int program_backward_ = -1;  ///< Autograd's number of the program's backward.
  Watch watch_;
  /// Hooks hold it weakly, to detect that this object is destroyed.
  std::shared_ptr<const void> alive_ = std::make_shared<int>(0);
};

}  // namespace lockstep
