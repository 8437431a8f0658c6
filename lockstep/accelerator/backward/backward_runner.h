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
/// once a backward; an exception propagates out of the backward. Each may be empty.
struct BackwardSteps {
  std::function<void()> begins = nullptr;    ///< Before the differentiation.
  std::function<void()> computed = nullptr;  ///< As BackwardOptions::computed.
  std::function<void()> ends = nullptr;      ///< After averaging, or its failure.
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

/// Runs backwards, and completes those that the program calls itself: scales the loss, averages the
/// gradients, and checks what must be true before and after. Not thread-safe, except for the
/// callbacks of autograd.
class BackwardRunner {
 public:
  explicit BackwardRunner(const BackwardParts& parts) : parts_(parts) {}

  /// See Accelerator::backward.
  void backward(const at::Tensor& loss, const BackwardOptions& options);
  void backward(const at::Tensor& loss_sum, double count);
  /// See Accelerator::scale_loss. `steps` are called in the backward of the returned loss.
  at::Tensor scale_loss(const at::Tensor& loss, BackwardSteps steps = {});
  /// See Accelerator::average_gradients.
  void average_gradients();

  /// Calls `check` at the first gradient of the prepared models from a backward of an unscaled
  /// loss; it throws if the gradients are wrong then. For the engine.
  void watch_unscaled_backwards(std::function<void()> check);
  /// Lets `ends_update` decide whether a backward is the last of an update. For the engine, which
  /// counts micro-steps itself.
  void set_ends_update(std::function<bool()> ends_update);

  /// Watches the models that were prepared since the last call.
  void watch_prepared();
  /// Removes its hooks from the models.
  void forget();

 private:
  /// The caller of the running backward: backward(), or the program, on a scaled loss.
  enum class Caller { kNone, kThis, kProgram };
  /// The hooks that see backwards of unscaled losses.
  struct Watch {
    std::unique_ptr<BackwardHooks> hooks;
    bool is_engines = false;  ///< Set by watch_unscaled_backwards.
    size_t models = 0;        ///< Else: the number of watched models.
    int accepted = -1;        ///< The last such backward that passed the check.
  };

  double accumulation_factor() const;
  at::Tensor scaled(const at::Tensor& loss, double factor);
  void run(const at::Tensor& loss, double factor, const BackwardOptions& options = {});
  void abandon() noexcept;
  void abandon_programs() noexcept;
  void begin_of_program(const BackwardSteps& steps);
  void end_of_program(const BackwardSteps& steps);
  void set_hooks(std::function<void()> check);
  void on_gradient(const std::function<void()>& check);
  void refuse_unscaled_backward() const;

  BackwardParts parts_;
  Caller caller_ = Caller::kNone;
  int program_backward_ = -1;  ///< The program's backward, as autograd numbers it.
  Watch watch_;
  /// For hooks that live longer than this.
  std::shared_ptr<const void> alive_ = std::make_shared<int>(0);
};

}  // namespace lockstep
