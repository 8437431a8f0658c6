// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/adafactor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

namespace lockstep::optim {
namespace {

struct AdafactorFields {
  enum : size_t { kRowVar, kColVar, kVariance };
};

double machine_epsilon(at::ScalarType type) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "adafactor", [] {
    return static_cast<double>(std::numeric_limits<scalar_t>::epsilon());
  });
}

double root_mean_square(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor).item<double>() /
         std::sqrt(static_cast<double>(tensor.numel()));
}

/// Returns the mean of the squares along `dim`, which is kept.
at::Tensor mean_square(const at::Tensor& gradient, int64_t dim) {
  return at::linalg_vector_norm(gradient, 2, dim, /*keepdim=*/true)
      .square_()
      .div_(gradient.size(dim));
}

double epsilon_of(const AdafactorOptions& options, at::ScalarType type) {
  return options.eps.first.value_or(machine_epsilon(type));
}

double one_minus_beta2(const AdafactorOptions& options, int64_t step) {
  return std::pow(static_cast<double>(step), options.beta2_decay);
}

/// `size`: the root mean square of the parameter.
double step_size(const AdafactorOptions& options, double size, int64_t step) {
  return std::max(options.eps.second, size) *
         std::min(options.lr, 1 / std::sqrt(static_cast<double>(step)));
}

/// Returns the product of rows and columns, over the rows' mean.
at::Tensor factored(
    const at::Tensor& rows,
    const at::Tensor& columns,
    const at::Tensor& mean_of_rows,
    double epsilon) {
  return at::matmul(rows, columns).div_(mean_of_rows.clamp_min(epsilon));
}

/// Replaces `estimate` by gradient / sqrt(estimate).
void divide_by_root(const at::Tensor& estimate, const at::Tensor& gradient, double epsilon) {
  estimate.clamp_min_(epsilon * epsilon).rsqrt_().mul_(gradient);
}

void decay_weights(const AdafactorOptions& options, const at::Tensor& parameter) {
  if (options.weight_decay != 0) {
    scale_(parameter, 1 - options.lr * options.weight_decay);
  }
}

/// `size`: the root mean square of the update.
double clipped(const AdafactorOptions& options, double alpha, double size) {
  return alpha / std::max(1.0, size / options.d);
}

void update_one(
    const AdafactorOptions& options,
    const at::Tensor& parameter,
    const at::Tensor& gradient,
    const at::Tensor& row_var,
    const at::Tensor& col_var,
    const at::Tensor& variance,
    int64_t step) {
  const double epsilon = epsilon_of(options, parameter.scalar_type());
  const double weight = one_minus_beta2(options, step);
  const double alpha = step_size(options, root_mean_square(parameter), step);
  decay_weights(options, parameter);
  at::Tensor update;
  if (row_var.defined()) {
    row_var.lerp_(mean_square(gradient, -1), weight);
    col_var.lerp_(mean_square(gradient, -2), weight);
    update = factored(row_var, col_var, row_var.mean(-2, /*keepdim=*/true), epsilon);
  } else {
    variance.lerp_(gradient.mul(gradient), weight);
    update = variance.clone();
  }
  divide_by_root(update, gradient, epsilon);
  parameter.add_(update, -clipped(options, alpha, root_mean_square(update)));
}

/// The matrices of a parameter, and the complete rows that overlap a slice of it. In a stack of
/// matrices these are all rows of each overlapping matrix.
struct RowsOfSlice {
  RowsOfSlice(const flat::ShardBounds& full, int rank)
      : rows(full.sizes[full.sizes.size() - 2]),
        columns(full.sizes.back()),
        stack(full.numel() / (rows * columns)) {
    const int64_t at_a_time = stack == 1 ? 1 : rows;
    const int64_t unit = at_a_time * columns;
    const int64_t begin = full.begin(rank);
    const int64_t end = begin + full.length(rank);
    first = begin / unit * at_a_time;
    count = (end + unit - 1) / unit * at_a_time - first;
    skipped = begin - first * columns;
  }

  /// Returns `slice` with zeros around it: (matrices, rows, columns).
  at::Tensor padded(const at::Tensor& slice) const {
    const at::Tensor all = at::zeros({count * columns}, slice.options());
    all.narrow(0, skipped, slice.numel()).copy_(slice);
    return all.view({matrices(), count / matrices(), columns});
  }
  int64_t matrices() const { return stack == 1 ? 1 : count / rows; }
  int64_t first_matrix() const { return stack == 1 ? 0 : first / rows; }

  int64_t rows;
  int64_t columns;
  int64_t stack;  ///< Matrices of the parameter.
  int64_t first = 0;
  int64_t count = 0;
  int64_t skipped = 0;  ///< Elements of the first row, or matrix, before the slice.
};

bool is_factored(at::IntArrayRef sizes) {
  return sizes.size() > 1;
}

/// One update of a ShardedRuleCall.
class ShardedUpdate {
 public:
  ShardedUpdate(const AdafactorOptions& options, const ShardedRuleCall& call)
      : options_(options), call_(call), ranks_(call.ranks) {}

  void run() {
    sum_squares();
    std::vector<at::Tensor> updates;
    const at::Tensor squares = one_for_each_parameter();
    for (size_t i = 0; i < slices().parameters.size(); ++i) {
      decay_weights(options_, slices().parameters[i]);
      updates.push_back(update_of(i));
      squares[index(i)].copy_(updates.back().square().sum());
    }
    const at::Tensor sizes = on_host(squares);
    for (size_t i = 0; i < updates.size(); ++i) {
      const double alpha = step_size(options_, mean_root(parameter_squares_, i), step(i));
      slices().parameters[i].add_(updates[i], -clipped(options_, alpha, mean_root(sizes, i)));
    }
  }

 private:
  const RuleCall& slices() const { return call_.slices; }
  int64_t step(size_t slice) const { return slices().steps[slice]; }
  int64_t index(size_t slice) const { return static_cast<int64_t>(call_.full_index[slice]); }
  at::Tensor gradient(size_t slice) const {
    return options_.maximize ? -slices().gradients[slice] : slices().gradients[slice];
  }
  at::Tensor one_for_each_parameter() const {
    return at::zeros({static_cast<int64_t>(call_.full_parameters.size())}, call_.options);
  }
  at::Tensor on_host(const at::Tensor& sums) {
    return ranks_.all_reduce(sums).wait().to(at::kDouble).cpu();
  }
  double mean_root(const at::Tensor& squares, size_t slice) const {
    return std::sqrt(
        squares[index(slice)].item<double>() /
        static_cast<double>(call_.full_parameter(slice).numel()));
  }

  /// Sums squares over all ranks: of gradients by rows and columns, and of parameters.
  void sum_squares() {
    int64_t total = 0;
    for (const flat::ShardBounds* full : call_.full_parameters) {
      offsets_.push_back(total);
      if (is_factored(full->sizes)) {
        const int64_t rows = full->numel() / full->sizes.back();
        total += rows + full->numel() / full->sizes[full->sizes.size() - 2];
      }
    }
    const auto count = static_cast<int64_t>(call_.full_parameters.size());
    sums_ = at::zeros({total + count}, call_.options);
    const at::Tensor of_parameters = sums_.narrow(0, total, count);
    for (size_t i = 0; i < slices().parameters.size(); ++i) {
      of_parameters[index(i)].copy_(slices().parameters[i].square().sum());
      if (is_factored(call_.full_parameter(i).sizes)) {
        const RowsOfSlice part(call_.full_parameter(i), ranks_.rank());
        const at::Tensor squares = part.padded(slices().gradients[i]).square_();
        rows_of(i, part)
            .narrow(0, part.first, part.count)
            .copy_(squares.sum(2, /*keepdim=*/false).flatten());
        columns_of(i, part)
            .narrow(0, part.first_matrix() * part.columns, part.matrices() * part.columns)
            .copy_(squares.sum(1, /*keepdim=*/false).flatten());
      }
    }
    ranks_.all_reduce(sums_).wait();
    parameter_squares_ = of_parameters.to(at::kDouble).cpu();
  }
  at::Tensor rows_of(size_t slice, const RowsOfSlice& part) const {
    return sums_.narrow(0, offsets_[call_.full_index[slice]], part.stack * part.rows);
  }
  at::Tensor columns_of(size_t slice, const RowsOfSlice& part) const {
    const int64_t rows = part.stack * part.rows;
    return sums_.narrow(0, offsets_[call_.full_index[slice]] + rows, part.stack * part.columns);
  }

  at::Tensor update_of(size_t i) const {
    const double epsilon = epsilon_of(options_, call_.options.dtype().toScalarType());
    const double weight = one_minus_beta2(options_, step(i));
    at::Tensor update;
    if (is_factored(call_.full_parameter(i).sizes)) {
      update = factored_estimate(i, weight, epsilon);
    } else {
      const at::Tensor& variance = slices().state[AdafactorFields::kVariance][i];
      variance.lerp_(gradient(i).square(), weight);
      update = variance.clone();
    }
    divide_by_root(update, gradient(i), epsilon);
    return update;
  }

  at::Tensor factored_estimate(size_t i, double weight, double epsilon) const {
    const RowsOfSlice part(call_.full_parameter(i), ranks_.rank());
    const at::Tensor& row_var = slices().state[AdafactorFields::kRowVar][i];
    const at::Tensor& col_var = slices().state[AdafactorFields::kColVar][i];
    row_var.lerp_(rows_of(i, part).view(row_var.sizes()).div(part.columns), weight);
    col_var.lerp_(columns_of(i, part).view(col_var.sizes()).div(part.rows), weight);
    const at::Tensor rows = row_var.view({part.stack, part.rows, 1});
    const int64_t matrix = part.first_matrix();
    const at::Tensor slice_rows = row_var.view({-1})
                                      .narrow(0, part.first, part.count)
                                      .view({part.matrices(), part.count / part.matrices(), 1});
    return factored(
               slice_rows,
               col_var.view({part.stack, 1, part.columns}).narrow(0, matrix, part.matrices()),
               rows.narrow(0, matrix, part.matrices()).mean(1, /*keepdim=*/true),
               epsilon)
        .flatten()
        .narrow(0, part.skipped, slices().parameters[i].numel());
  }

  const AdafactorOptions& options_;
  const ShardedRuleCall& call_;
  Group ranks_;
  at::Tensor sums_;
  std::vector<int64_t> offsets_;  ///< [parameter] Of its rows in `sums_`; its columns follow.
  at::Tensor parameter_squares_;  ///< [parameter] On the host.
};

}  // namespace

RuleTraits AdafactorRule::traits() {
  return {
      .name = "Adafactor",
      .fields = {"row_var", "col_var", "variance"},
      .elementwise = false,
      .factors = {"row_var", "col_var"}};
}

NamedOptions AdafactorRule::named(Options& options) {
  return {
      {"lr", &options.lr},
      {"beta2_decay", &options.beta2_decay},
      {"eps", &options.eps},
      {"d", &options.d},
      {"weight_decay", &options.weight_decay},
      {"maximize", &options.maximize}};
}

void AdafactorRule::check(const Options& options) {
  const char* rule = "Adafactor";
  require_not_negative(rule, "lr", options.lr);
  require_option(options.beta2_decay <= 0, rule, "beta2_decay", options.beta2_decay, "at most 0");
  const double first = options.eps.first.value_or(0);
  require_not_negative(rule, "eps[0]", first);
  require_not_negative(rule, "eps[1]", options.eps.second);
  require_option(options.d >= 1, rule, "d", options.d, "at least 1");
  require_not_negative(rule, "weight_decay", options.weight_decay);
}

StateShape AdafactorRule::shape(const Options& /*options*/, at::IntArrayRef sizes, size_t field) {
  const bool factors = is_factored(sizes);
  if (field == AdafactorFields::kVariance) {
    return factors ? StateShape::kNone : StateShape::kParameter;
  }
  if (!factors) {
    return StateShape::kNone;
  }
  return field == AdafactorFields::kRowVar ? StateShape::kRow : StateShape::kColumn;
}

void AdafactorRule::update(const Options& options, const RuleCall& call) {
  for (size_t i = 0; i < call.parameters.size(); ++i) {
    update_one(
        options,
        call.parameters[i],
        options.maximize ? -call.gradients[i] : call.gradients[i],
        call.state[AdafactorFields::kRowVar][i],
        call.state[AdafactorFields::kColVar][i],
        call.state[AdafactorFields::kVariance][i],
        call.steps[i]);
  }
}

void AdafactorRule::update_sharded(const Options& options, const ShardedRuleCall& call) {
  ShardedUpdate(options, call).run();
}

}  // namespace lockstep::optim
