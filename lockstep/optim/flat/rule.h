// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

/// What one call of an update rule works on, in place: tensors of one dtype and device, dense in
/// memory. A tensor is one parameter or, where the rule is elementwise, a stretch of a flat buffer
/// with many.
struct Batch {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;           ///< Only read; strided as the parameters.
  std::vector<std::vector<at::Tensor>> state;  ///< [field][tensor]; undefined if it has none.
  std::vector<int64_t> steps;                  ///< [tensor] Steps it has seen, this one included.
  std::vector<std::vector<double>> factors;    ///< [tensor] What the rule's `advance` gave, if any.
  bool first = false;                          ///< The state was made for this call.
  /// Where the update is to be part of a graph, the learning rate, 0-d, and, if the rule counts
  /// them, the steps, [tensor]: to be read on the device, not the host's numbers. Else undefined.
  at::Tensor device_lr = {};
  std::vector<at::Tensor> device_steps = {};
};

/// How large a parameter's tensor of one state field is.
enum class StateShape {
  kNone,       ///< There is none.
  kParameter,  ///< As the parameter.
  kRow,        ///< The parameter's, the last dimension 1.
  kColumn,     ///< The parameter's, the last but one 1.
};

/// What is known of a rule whatever its options.
struct RuleTraits {
  const char* name;                 ///< As Python's class.
  std::vector<const char*> fields;  ///< State, named as in Python's state_dict.
  /// State that is one float32 of a parameter, kept by the host as its steps are: a rule with such
  /// has an `advance`, and cannot be captured.
  std::vector<const char*> scalars = {};
  bool elementwise = true;   ///< Each element by itself: parameters may be joined.
  bool counts_steps = true;  ///< "step" is state too; only equal ones may be joined.
  bool eager_state = false;  ///< State exists before the first step.
  /// Those of `fields` that have numbers of rows and columns, not of elements: where ranks have
  /// slices of a parameter, each of these ranks has all of them.
  std::vector<const char*> factors = {};
};

/// A hyperparameter under the name Python gives it.
struct NamedOption {
  using Value = std::variant<
      double*,
      bool*,
      std::pair<double, double>*,
      std::tuple<double, double>*,
      std::pair<std::optional<double>, double>*>;
  const char* name;
  Value value;
};
using NamedOptions = std::vector<NamedOption>;

/// ConfigError "[optim] ..." unless `good`.
void require_option(
    bool good, const char* rule, const char* option, double value, const char* want);

/// The same for a number that must be at least 0.
void require_not_negative(const char* rule, const char* option, double value);
/// What Adam and its like have in common; `betas` from 0, below 1.
template <typename Options>
void require_adam_like(const char* rule, const Options& options) {
  require_not_negative(rule, "lr", options.lr);
  for (const double beta : {options.betas.first, options.betas.second}) {
    require_option(beta >= 0 && beta < 1, rule, "one of betas", beta, "at least 0, below 1");
  }
  require_not_negative(rule, "weight_decay", options.weight_decay);
}

/// The memory of a dense tensor as one of one dimension, whatever its strides.
at::Tensor memory_of(const at::Tensor& tensor);

/// Calls `visit` with 1-D stretches of `batch`'s tensors: [0] parameter, [1] gradient, [2 ...] the
/// fields of state (undefined where there is none), and with the tensor's index in `batch`. On the
/// CPU they are short enough that a rule of several passes finds them in the cache each time. For
/// elementwise rules.
void for_each_chunk(
    const Batch& batch,
    const std::function<void(const std::vector<at::Tensor>& chunk, size_t index)>& visit);

/// Calls a fused kernel of libtorch so that an element's result does not depend on where it lies.
/// On the CPU (of torch 2.13) these round the last elements, which do not fill a vector, otherwise
/// than all others. So in fp32 and fp64 they get whole vectors only: what is left over goes into
/// padded copies and back. For elementwise rules.
void run_fused(const Batch& batch, const std::function<void(const Batch& whole)>& kernel);

/// tensor *= factor, the factor in full precision as in Python; returns `tensor`.
/// `Tensor::mul_(Scalar)` rounds it to the tensor's dtype first, which makes 0.999 a 1 in bf16.
at::Tensor scale_(const at::Tensor& tensor, double factor);

/// tensor / divisor, the divisor in full precision, too.
at::Tensor divided(const at::Tensor& tensor, double divisor);

/// The steps of `batch` as libtorch's fused kernels want them: scalars beside the parameters.
std::vector<at::Tensor> step_tensors(const Batch& batch);

/// Calls `kernel` with the rate of `batch`: the host's, which is `lr`, or the device's.
template <typename Kernel>
void with_rate(const Batch& batch, double lr, const Kernel& kernel) {
  if (batch.device_lr.defined()) {
    kernel(batch.device_lr);
  } else {
    kernel(lr);
  }
}

/// parameter -= direction * lr, of the same strides, the rate of `batch` as above. Where it is the
/// device's the product is formed in float32 at least, and rounded once more than with the host's.
void descend_(
    const at::Tensor& parameter, const at::Tensor& direction, const Batch& batch, double lr);
/// parameter *= 1 - lr * weight_decay: decoupled weight decay.
void decay_(const at::Tensor& parameter, double weight_decay, const Batch& batch, double lr);

/// 1 - beta^step, the correction of a moment that began at 0, of tensor `index`.
double bias_correction(const Batch& batch, size_t index, double beta);
/// The same where `batch` has the device's steps: there, 0-d, float64 as on the host.
at::Tensor device_bias_correction(const Batch& batch, size_t index, double beta);
/// A number on the device in the shape and dtype in which it multiplies or divides `tensor`'s
/// memory without being cut to half precision.
at::Tensor device_factor(const at::Tensor& number, const at::Tensor& tensor);

}  // namespace lockstep::optim
