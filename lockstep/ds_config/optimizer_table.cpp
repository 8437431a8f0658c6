// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameter_specs.h"

namespace lockstep::ds_config {
namespace {

constexpr double kAny = std::numeric_limits<double>::lowest();

ParameterSpec betas(double first, double second) {
  ParameterSpec spec = with_default("betas", KeyKind::kPair, 0, std::vector<double>{first, second});
  spec.key.most = 1;
  return spec;
}

/// What every optimizer refuses or leaves out alike.
std::vector<ParameterSpec> with_common(
    std::vector<ParameterSpec> own, bool capturable = true, bool narrow_state = false) {
  const std::string fused = "the update is one pass over memory, whatever this says";
  own.push_back(without_effect("foreach", fused));
  own.push_back(without_effect("fused", fused));
  own.push_back(without_effect("set_grad_none", "zero_grad always lets gradients go"));
  own.push_back(fixed(
      "differentiable", KeyKind::kBoolean, "false", "an update is not differentiated; delete it"));
  own.push_back(
      capturable ? flag("capturable", false)
                 : fixed(
                       "capturable",
                       KeyKind::kBoolean,
                       "false",
                       "its update takes numbers from the host each time, and cannot be captured; "
                       "try AdamW"));
  own.push_back(
      narrow_state ? flag("fp32_optimizer_states", true)
                   : fixed(
                         "fp32_optimizer_states",
                         KeyKind::kBoolean,
                         "true",
                         "only Adam has narrower state; delete it"));
  own.push_back(
      {.key = refused(
           "max_grad_norm", "gradients are clipped by gradient_clipping; write that at the top")});
  return own;
}

/// A rate in the place of lr, which may be left out.
ParameterSpec own_rate(std::string name) {
  ParameterSpec spec{.key = works(std::move(name), KeyKind::kNumber, "")};
  spec.key.least = 0;
  spec.key.may_be_null = true;
  spec.key.auto_rule = AutoRule::kRefused;
  return spec;
}

TypeSpec adam(const std::string& name, const std::string& words) {
  return {
      .name = name,
      .words = words,
      .parameters = with_common(
          {number("lr", 0, 1e-3),
           betas(0.9, 0.999),
           number("eps", 0, 1e-8),
           number("weight_decay", 0, 0.0),
           flag("adam_w_mode", true),
           flag("amsgrad", false),
           flag("maximize", false),
           flag("torch_adam", false),
           fixed(
               "bias_correction",
               KeyKind::kBoolean,
               "true",
               "Adam is always corrected; delete it")},
          /*capturable=*/true,
          /*narrow_state=*/true)};
}

constexpr const char* kMup =
    "by maximal update parametrization: the program gives mup_shapes, see optim::set_base_shapes; ";

TypeSpec mu_adam(const std::string& name, const std::string& like) {
  return {
      .name = name,
      .words = kMup + like + ", with lr / m and weight_decay * m for matrices m times as wide",
      .parameters = with_common(
          {required(number("lr", 0, 0.0)),
           betas(0.9, 0.999),
           number("eps", 0, 1e-8),
           number("weight_decay", 0, 0.0),
           flag("amsgrad", false),
           flag("maximize", false),
           flag("decoupled_wd", false)})};
}

constexpr const char* kNeedsWhole = "not with offload_optimizer, since it needs whole parameters";

std::vector<TypeSpec> make_optimizer_types() {
  std::vector<TypeSpec> types = {
      adam("Adam", "is AdamW unless adam_w_mode is false"),
      adam("AdamW", "with torch_adam, weight_decay is 0.01 unless given, as torch's"),
      {.name = "Lamb",
       .words = kNeedsWhole,
       .parameters = with_common(
           {number("lr", 0, 1e-3),
            betas(0.9, 0.999),
            number("eps", 0, 1e-8),
            number("weight_decay", 0, 0.0),
            flag("bias_correction", true),
            number("max_coeff", 0, 10.0),
            number("min_coeff", 0, 0.01),
            fixed("eps_inside_sqrt", KeyKind::kBoolean, "false", "eps stands outside; delete it"),
            fixed("amsgrad", KeyKind::kBoolean, "false", "Lamb has none; delete it")})},
      {.name = "Lion",
       .parameters =
           with_common({number("lr", 0, 1e-3), betas(0.9, 0.999), number("weight_decay", 0, 0.0)})},
      {.name = "Adagrad",
       .parameters = with_common(
           {number("lr", 0, 1e-2),
            number("eps", 0, 1e-10),
            number("weight_decay", 0, 0.0),
            number("lr_decay", 0, 0.0),
            number("initial_accumulator_value", 0, 0.0),
            flag("maximize", false)})},
      {.name = "SGD",
       .parameters = with_common(
           {number("lr", 0, 1e-3),
            number("momentum", 0, 0.0),
            number("dampening", kAny, 0.0),
            number("weight_decay", 0, 0.0),
            flag("nesterov", false),
            flag("maximize", false)})},
      {.name = "RMSprop",
       .parameters = with_common(
           {number("lr", 0, 1e-2),
            number("alpha", 0, 0.99),
            number("eps", 0, 1e-8),
            number("weight_decay", 0, 0.0),
            number("momentum", 0, 0.0),
            flag("centered", false),
            flag("maximize", false)})},
      {.name = "Adafactor",
       .words = kNeedsWhole,
       .parameters = with_common(
           {number("lr", 0, 1e-2),
            number("beta2_decay", kAny, -0.8),
            number("d", std::numeric_limits<double>::min(), 1.0),
            number("weight_decay", 0, 0.0),
            flag("maximize", false),
            {.key = refused("eps", "always torch's (null, 0.001); delete it")}},
           /*capturable=*/false)},
      {.name = "Muon",
       .words =
           "not with offload_optimizer, since it needs whole parameters; gradients are clipped "
           "before, in every stage; those that are no matrices, or have embed or lm_head in their "
           "names, are updated as by AdamW: with adam_lr, else lr if that is given, else 0.0003",
       .parameters = with_common(
           {number("lr", 0, 2e-2),
            own_rate("muon_lr"),
            own_rate("adam_lr"),
            number("momentum", 0, 0.95),
            number("weight_decay", 0, 0.0),
            choice("ns_method", {"gram", "standard"}),
            betas(0.9, 0.95),
            number("eps", 0, 1e-10),
            without_effect("torch_adam", "the update is one pass over memory, whatever this says"),
            fixed(
                "adam_w_mode",
                KeyKind::kBoolean,
                "true",
                "weight decay is taken from the parameters, never added to gradients; delete it"),
            fixed(
                "per_head_muon",
                KeyKind::kBoolean,
                "false",
                "attention heads are not told apart; delete it")},
           /*capturable=*/false)},
      mu_adam("MuAdam", "torch's Adam"),
      mu_adam("MuAdamW", "torch's AdamW"),
      {.name = "MuSGD",
       .words = kMup + std::string("SGD, with lr * m and weight_decay / m for vectors m times as "
                                   "wide; of matrices m is fan-out's over fan-in's"),
       .parameters = with_common(
           {required(number("lr", 0, 0.0)),
            number("momentum", 0, 0.0),
            number("dampening", kAny, 0.0),
            number("weight_decay", 0, 0.0),
            flag("nesterov", false),
            flag("maximize", false),
            flag("decoupled_wd", false)})}};
  for (const char* name : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    types.push_back(refused_type(
        name, "is gone from DeepSpeed 0.19; write Adam or Lamb, and communication_data_type"));
  }
  return types;
}

}  // namespace

const std::vector<TypeSpec>& optimizer_types() {
  static const std::vector<TypeSpec> types = make_optimizer_types();
  return types;
}

}  // namespace lockstep::ds_config
