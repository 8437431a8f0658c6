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

/// Holds the arguments of one call of an update rule, which works in place: tensors of one dtype
/// and device, dense in memory. A tensor is one parameter or, for an elementwise rule, a range of a
/// flat buffer with many.
struct RuleCall {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;           ///< Read-only; strides of the parameters.
  std::vector<std::vector<at::Tensor>> state;  ///< [field][tensor]; undefined if it has none.
  std::vector<int64_t> steps;                  ///< [tensor] Updates including this one.
  /// [tensor] The result of the rule's `advance`, if any.
  std::vector<std::vector<double>> factors;
  bool first = false;  ///< The state was created for this call.
  /// The learning rate of an update in a graph, 0-d, which the rule reads on the device instead of
  /// the host's. Else undefined.
  at::Tensor device_lr = {};
  /// [tensor] The steps of an update in a graph, if the rule counts them. Else empty.
  std::vector<at::Tensor> device_steps = {};
};

/// The shape of a parameter's tensor of one state field.
enum class StateShape {
  kNone,       ///< The parameter has no such state.
  kParameter,  ///< As the parameter.
  kRow,        ///< The parameter's, with last dimension 1.
  kColumn,     ///< The parameter's, with last but one dimension 1.
};

/// Returns the sizes of a state field of `shape` for a parameter of `sizes`. The parameter may be a
/// slice of one of `full_sizes`; rows and columns are the full parameter's.
std::vector<int64_t> state_sizes(
    StateShape shape, at::IntArrayRef sizes, at::IntArrayRef full_sizes);

/// The properties of a rule that do not depend on its options.
struct RuleTraits {
  const char* name;                 ///< As Python's class.
  std::vector<const char*> fields;  ///< State, named as in Python's state_dict.
  /// State of one float32 a parameter, which the host keeps, as it keeps steps. Such a rule has an
  /// `advance`, and cannot be captured.
  std::vector<const char*> scalars = {};
  bool elementwise = true;   ///< Elements are independent: parameters may be joined.
  bool counts_steps = true;  ///< "step" is state; only equal ones may be joined.
  bool eager_state = false;  ///< State exists before the first step.
  /// The update calls the program, for instance Python, so it runs in `step` only, on its thread.
  bool calls_program = false;
  /// The `fields` with values for rows and columns. Each rank with a slice of a parameter has all
  /// values.
  std::vector<const char*> factors = {};
};

/// A hyperparameter with its Python name.
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

/// Throws ConfigError "[optim] ..." unless `good`.
void require_option(
    bool good, const char* rule, const char* option, double value, const char* want);

/// Does the same for a number that must be at least 0.
void require_not_negative(const char* rule, const char* option, double value);
/// Checks the options that Adam and similar rules share; `betas` from 0, below 1.
template <typename Options>
void require_adam_like(const char* rule, const Options& options) {
  require_not_negative(rule, "lr", options.lr);
  for (const double beta : {options.betas.first, options.betas.second}) {
    require_option(beta >= 0 && beta < 1, rule, "one of betas", beta, "at least 0, below 1");
  }
  require_not_negative(rule, "weight_decay", options.weight_decay);
}

/// Returns the memory of a dense tensor as a 1-D tensor.
at::Tensor memory_of(const at::Tensor& tensor);

/// Calls `visit` with 1-D chunks of `call`'s tensors and the tensor's index in `call`. A chunk
/// has [0] parameter, [1] gradient, [2 ...] state fields (undefined if missing). On the CPU chunks
/// fit into the cache, for rules with several passes. For elementwise rules.
void for_each_chunk(
    const RuleCall& call,
    const std::function<void(const std::vector<at::Tensor>& chunk, size_t index)>& visit);

/// Calls a fused kernel of libtorch so that an element's result does not depend on its position. On
/// the CPU (torch 2.13) these kernels round the last elements, which do not fill a vector,
/// differently. So in fp32 and fp64 they get full vectors only: the rest is copied to padded
/// buffers and back. For elementwise rules.
void run_fused(const RuleCall& call, const std::function<void(const RuleCall& padded)>& kernel);

/// Computes tensor *= factor with the factor in full precision, as in Python; returns `tensor`.
/// `Tensor::mul_(Scalar)` rounds it to the tensor's dtype first: 0.999 becomes 1 in bf16.
at::Tensor scale_(const at::Tensor& tensor, double factor);

/// Computes tensor / divisor, with the divisor in full precision.
at::Tensor divided(const at::Tensor& tensor, double divisor);

/// Returns the steps of `call` in the form of libtorch's fused kernels: scalars on the parameters'
/// device.
std::vector<at::Tensor> step_tensors(const RuleCall& call);

/// Calls `kernel` with the learning rate of `call`: the host's `lr`, or the device's.
template <typename Kernel>
void with_rate(const RuleCall& call, double lr, const Kernel& kernel) {
  if (call.device_lr.defined()) {
    kernel(call.device_lr);
  } else {
    kernel(lr);
  }
}

/// Computes parameter -= direction * lr, for equal strides, with the rate of `call` as above. With
/// a device rate the product is formed in float32 at least, and rounded once more than with the
/// host's.
void descend_(
    const at::Tensor& parameter, const at::Tensor& direction, const RuleCall& call, double lr);
/// Computes parameter *= 1 - lr * weight_decay: decoupled weight decay.
void decay_(const at::Tensor& parameter, double weight_decay, const RuleCall& call, double lr);

/// Returns 1 - beta^step, the bias correction of a moment, for tensor `index`.
double bias_correction(const RuleCall& call, size_t index, double beta);
/// Does the same for device steps: a 0-d tensor on the device, float64 as on the host.
at::Tensor device_bias_correction(const RuleCall& call, size_t index, double beta);
/// Converts a device scalar to the shape and dtype in which it multiplies or divides `tensor`
/// without rounding to half precision.
at::Tensor device_factor(const at::Tensor& number, const at::Tensor& tensor);

}  // namespace lockstep::optim
