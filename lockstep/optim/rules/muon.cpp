// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/rules/muon.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/addmm.h>
#include <ATen/ops/matmul.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/rules/adam.h"

namespace lockstep::optim {
namespace {

struct MuonFields {
  enum : size_t { kMomentumBuffer, kExpAvg, kExpAvgSq };
};

constexpr int kIterations = 5;
// The polynomial with the largest slope at 0 that still keeps singular values near 1.
constexpr double kA = 3.4445;
constexpr double kB = -4.7750;
constexpr double kC = 2.0315;

/// Orthogonalizes in bf16. The matrix has at most as many rows as columns.
at::Tensor orthogonal(const at::Tensor& matrix, double eps) {
  at::Tensor x = matrix.to(at::kBFloat16);
  x = x.div(x.norm().clamp_min(eps));
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor gram = at::matmul(x, x.t());
    const at::Tensor step = at::addmm(gram, gram, gram, kB, kC);
    x = at::addmm(x, step, x, kA, 1);
  }
  return x;
}

/// Does the same with one factor that accumulates the polynomials, so that products are rows x
/// rows. Restarts after two iterations, before errors of low precision grow.
at::Tensor orthogonal_by_gram(const at::Tensor& matrix, double eps) {
  at::Tensor x = matrix.to(at::kFloat);
  x = x.div(x.norm().add(eps)).to(matrix.is_cpu() ? at::kFloat : at::kHalf);
  if (x.size(0) == x.size(1)) {
    for (int i = 0; i < kIterations; ++i) {
      const at::Tensor gram = at::matmul(x, x.t());
      x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA, 1);
    }
    return x;
  }
  constexpr int kRestart = 2;
  at::Tensor gram = at::matmul(x, x.t());
  at::Tensor factor;
  for (int i = 0; i < kIterations; ++i) {
    if (i == kRestart) {
      x = at::matmul(factor, x);
      gram = at::matmul(x, x.t());
      factor = at::Tensor();
    }
    const at::Tensor step = at::addmm(gram, gram, gram, kB, kC);
    if (factor.defined()) {
      factor = at::addmm(factor, step, factor, kA, 1);
    } else {
      factor = step.clone();
      factor.diagonal().add_(kA);
    }
    if (i + 1 < kIterations && i + 1 != kRestart) {
      const at::Tensor next = at::addmm(gram, step, gram, kA, 1);
      gram = at::addmm(next, step, next, kA, 1);
    }
  }
  return at::matmul(factor, x);
}

/// Returns the tensor to orthogonalize. Elementwise.
at::Tensor direction(
    const MuonOptions& options, const at::Tensor& gradient, const at::Tensor& buffer) {
  buffer.lerp_(gradient, 1 - options.momentum);
  return options.nesterov ? gradient.lerp(buffer, options.momentum) : buffer;
}

/// Returns the orthogonalized matrix, with one row a filter if `update` has four dimensions.
at::Tensor orthogonalized(const MuonOptions& options, const at::Tensor& update) {
  at::Tensor matrix = update.flatten(1);
  const bool tall = matrix.size(0) > matrix.size(1);
  matrix = tall ? matrix.t() : matrix;
  matrix = options.gram ? orthogonal_by_gram(matrix, options.eps) : orthogonal(matrix, options.eps);
  return tall ? matrix.t() : matrix;
}

at::ScalarType orthogonal_dtype(const MuonOptions& options, at::Device device) {
  if (!options.gram) {
    return at::kBFloat16;
  }
  return device.is_cpu() ? at::kFloat : at::kHalf;
}

struct MatrixSizes {
  explicit MatrixSizes(at::IntArrayRef sizes)
      : rows(static_cast<double>(sizes[0])),
        columns(static_cast<double>(c10::multiply_integers(sizes.slice(1)))) {}
  double rows;
  double columns;
};

/// Updates `parameter`, a matrix of `sizes` or a slice of it. Elementwise.
void apply_step(
    const MuonOptions& options,
    const at::Tensor& parameter,
    const at::Tensor& step,
    at::IntArrayRef sizes) {
  const auto [rows, columns] = MatrixSizes(sizes);
  const double scale = options.match_rms_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                               : std::sqrt(std::max(1.0, rows / columns));
  scale_(parameter, 1 - options.lr * options.weight_decay);
  parameter.add_(step.reshape(parameter.sizes()), -options.lr * scale);
}

bool is_matrix(at::IntArrayRef sizes) {
  return sizes.size() == 2 || sizes.size() == 4;
}

bool is_first_or_last_layer(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return name.find("embed") != std::string::npos || name.find("lm_head") != std::string::npos;
}

}  // namespace

RuleTraits MuonRule::traits() {
  return {
      .name = "Muon", .fields = {"momentum_buffer", "exp_avg", "exp_avg_sq"}, .elementwise = false};
}

NamedOptions MuonRule::named(Options& options) {
  NamedOptions names = {
      {"lr", &options.lr},
      {"weight_decay", &options.weight_decay},
      {"use_muon", &options.use_muon}};
  // Only options that this kind of group reads, so that set_momentum finds the right ones.
  const NamedOptions own =
      options.use_muon ? NamedOptions{
                             {"momentum", &options.momentum},
                             {"nesterov", &options.nesterov},
                             {"eps", &options.eps},
                             {"match_rms_adamw", &options.match_rms_adamw},
                             {"gram", &options.gram}}
                       : NamedOptions{{"betas", &options.betas}, {"adam_eps", &options.adam_eps}};
  names.insert(names.end(), own.begin(), own.end());
  return names;
}

void MuonRule::check(const Options& options) {
  const char* rule = "Muon";
  require_adam_like(rule, options);
  require_option(options.eps > 0, rule, "eps", options.eps, "more than 0");
  require_option(options.adam_eps > 0, rule, "adam_eps", options.adam_eps, "more than 0");
  require_option(
      options.momentum >= 0 && options.momentum < 1,
      rule,
      "momentum",
      options.momentum,
      "at least 0, below 1");
}

StateShape MuonRule::shape(const Options& options, at::IntArrayRef sizes, size_t field) {
  if (options.use_muon && !is_matrix(sizes)) {
    throw ConfigError(
        "optim",
        fmt::format(
            "Muon orthogonalizes matrices; got a parameter of {} dimensions, expected 2, or 4 of a "
            "convolution; put it into a group with use_muon = false, as optim::muon_groups does",
            sizes.size()));
  }
  return options.use_muon == (field == MuonFields::kMomentumBuffer) ? StateShape::kParameter
                                                                    : StateShape::kNone;
}

void MuonRule::update(const Options& options, const RuleCall& call) {
  if (options.use_muon) {
    for (size_t i = 0; i < call.parameters.size(); ++i) {
      const at::Tensor& parameter = call.parameters[i];
      const at::Tensor step = orthogonalized(
          options,
          direction(options, call.gradients[i], call.state[MuonFields::kMomentumBuffer][i]));
      apply_step(options, parameter, step, parameter.sizes());
    }
    return;
  }
  RuleCall others = call;
  others.state = {
      call.state[MuonFields::kExpAvg],
      call.state[MuonFields::kExpAvgSq],
      std::vector<at::Tensor>(call.parameters.size())};
  AdamWRule::update(
      {.lr = options.lr,
       .betas = options.betas,
       .eps = options.adam_eps,
       .weight_decay = options.weight_decay},
      others);
}

void MuonRule::update_sharded(const Options& options, const ShardedRuleCall& call) {
  const RuleCall& slices = call.slices;
  std::vector<double> costs;
  for (const flat::ShardBounds* full : call.full_parameters) {
    const auto [rows, columns] = MatrixSizes(full->sizes);
    costs.push_back(rows * columns * std::min(rows, columns));
  }
  update_on_owners(
      call,
      {.costs = std::move(costs),
       .result = orthogonal_dtype(options, call.options.device()),
       .input =
           [&](size_t i) {
             return direction(
                 options, slices.gradients[i], slices.state[MuonFields::kMomentumBuffer][i]);
           },
       .compute = [&](const at::Tensor& full) { return orthogonalized(options, full); },
       .apply =
           [&](size_t i, const at::Tensor& step) {
             apply_step(options, slices.parameters[i], step, call.full_parameter(i).sizes);
           }});
}

std::vector<Muon::Group> muon_groups(
    const NamedTensors& parameters, MuonOptions matrices, MuonOptions others) {
  matrices.use_muon = true;
  others.use_muon = false;
  std::vector<Muon::Group> groups = {{{}, matrices}, {{}, others}};
  std::map<const at::TensorImpl*, bool> hidden;  // True if all names of the parameter qualify.
  for (const NamedTensor& item : parameters) {
    const bool here = is_matrix(item.tensor.sizes()) && !is_first_or_last_layer(item.name);
    const auto [found, fresh] = hidden.try_emplace(item.tensor.unsafeGetTensorImpl(), here);
    found->second = found->second && here;
  }
  for (const NamedTensor& item : parameters) {
    const auto found = hidden.find(item.tensor.unsafeGetTensorImpl());
    if (item.tensor.requires_grad() && found != hidden.end()) {
      groups[found->second ? 0 : 1].parameters.push_back(item.tensor);
      hidden.erase(found);
    }
  }
  std::erase_if(groups, [](const Muon::Group& group) { return group.parameters.empty(); });
  return groups;
}

}  // namespace lockstep::optim
