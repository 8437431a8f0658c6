// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameters/parameter_specs.h"

namespace lockstep::ds_config {
namespace {

constexpr double kAny = std::numeric_limits<double>::lowest();

ParameterSpec pair(std::string name, double first, double second) {
  return with_default(std::move(name), KeyKind::kPair, 0, std::vector<double>{first, second});
}

ParameterSpec at_most_1(ParameterSpec spec) {
  spec.key.most = 1;
  return spec;
}

ParameterSpec betas(double first, double second) {
  return at_most_1(pair("betas", first, second));
}

/// Creates eps, in which null, here NaN, is the dtype's epsilon.
ParameterSpec adafactor_eps() {
  ParameterSpec spec = pair("eps", std::numeric_limits<double>::quiet_NaN(), 1e-3);
  spec.key.first_may_be_null = true;
  return spec;
}

/// Adds the parameters that every optimizer ignores or refuses.
std::vector<ParameterSpec> with_common(
    std::vector<ParameterSpec> own, bool capturable = true, bool has_16_bit_state = false) {
  const std::string fused = "the update is always one pass over memory";
  own.push_back(without_effect("foreach", fused));
  own.push_back(without_effect("fused", fused));
  own.push_back(without_effect("set_grad_none", "zero_grad always drops gradients"));
  own.push_back(fixed(
      "differentiable", KeyKind::kBoolean, "false", "an update is not differentiated; delete it"));
  own.push_back(
      capturable ? flag("capturable", false)
                 : fixed(
                       "capturable",
                       KeyKind::kBoolean,
                       "false",
                       "its update reads numbers from the host and cannot be captured; "
                       "try AdamW"));
  own.push_back(
      has_16_bit_state ? flag("fp32_optimizer_states", true)
                       : fixed(
                             "fp32_optimizer_states",
                             KeyKind::kBoolean,
                             "true",
                             "only Adam has 16-bit state; delete it"));
  own.push_back(
      {.key = refused("max_grad_norm", "use gradient_clipping at the top level instead")});
  return own;
}

/// Creates a rate that replaces lr, and may be absent.
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
      .description = words,
      .parameters = with_common(
          {number("lr", 0, 1e-3),
           betas(0.9, 0.999),
           number("eps", 0, 1e-8),
           number("weight_decay", 0, 0.0),
           flag("adam_w_mode", true),
           flag("amsgrad", false),
           flag("maximize", false),
           flag("torch_adam", false),
           flag("bias_correction", true)},
          /*capturable=*/true,
          /*has_16_bit_state=*/true)};
}

/// Adds the optimizers of torch.optim that DeepSpeed finds by name.
void add_other_torch_optimizers(std::vector<TypeSpec>& types) {
  constexpr bool kNotCapturable = false;
  const ParameterSpec decay = number("weight_decay", 0, 0.0);
  const ParameterSpec eps = number("eps", 0, 1e-8);
  const ParameterSpec decoupled = flag("decoupled_weight_decay", false);
  const ParameterSpec maximize = flag("maximize", false);
  types.push_back(
      {.name = "Adadelta",
       .parameters = with_common(
           {number("lr", 0, 1.0),
            at_most_1(number("rho", 0, 0.9)),
            number("eps", 0, 1e-6),
            decay,
            maximize})});
  types.push_back(
      {.name = "Adamax",
       .parameters =
           with_common({number("lr", 0, 2e-3), betas(0.9, 0.999), eps, decay, maximize})});
  types.push_back(
      {.name = "NAdam",
       .parameters = with_common(
           {number("lr", 0, 2e-3),
            betas(0.9, 0.999),
            eps,
            decay,
            number("momentum_decay", 0, 4e-3),
            decoupled,
            maximize},
           kNotCapturable)});
  types.push_back(
      {.name = "RAdam",
       .parameters = with_common(
           {number("lr", 0, 1e-3), betas(0.9, 0.999), eps, decay, decoupled, maximize})});
  types.push_back(
      {.name = "ASGD",
       .parameters = with_common(
           {number("lr", 0, 1e-2),
            number("lambd", 0, 1e-4),
            number("alpha", kAny, 0.75),
            number("t0", kAny, 1e6),
            decay,
            maximize},
           kNotCapturable)});
  types.push_back(
      {.name = "Rprop",
       .description = "lr is the size of the first step only",
       .parameters = with_common(
           {number("lr", 0, 1e-2),
            pair("etas", 0.5, 1.2),
            pair("step_sizes", 1e-6, 50),
            maximize})});
  types.push_back(refused_type(
      "LBFGS",
      "computes the loss several times in an update, by a closure, which the engine's step() does "
      "not have; write AdamW, or call torch::optim::LBFGS in the program"));
  types.push_back(refused_type(
      "SparseAdam", "needs sparse gradients, but gradients are averaged dense; write Adam"));
}

/// Creates a required lr. Not required(number(...)): gcc 12 misreads that in a unity build.
ParameterSpec required_rate() {
  ParameterSpec spec = own_rate("lr");
  spec.key.may_be_null = false;
  spec.required = true;
  return spec;
}

constexpr const char* kMup =
    "by maximal update parametrization: the program gives mup_shapes, see optim::set_base_shapes; ";

TypeSpec mu_adam(const std::string& name, const std::string& like) {
  return {
      .name = name,
      .description =
          kMup + like + ", with lr / m and weight_decay * m for matrices m times as wide",
      .parameters = with_common(
          {required_rate(),
           betas(0.9, 0.999),
           number("eps", 0, 1e-8),
           number("weight_decay", 0, 0.0),
           flag("amsgrad", false),
           flag("maximize", false),
           flag("decoupled_wd", false)})};
}

constexpr const char* kNeedsFull = "not with offload_optimizer, since it needs full parameters";

std::vector<TypeSpec> make_optimizer_types() {
  std::vector<TypeSpec> types = {
      adam("Adam", "is AdamW unless adam_w_mode is false"),
      adam("AdamW", "with torch_adam, weight_decay is 0.01 unless given, as torch's"),
      {.name = "Lamb",
       .description = kNeedsFull,
       .parameters = with_common(
           {number("lr", 0, 1e-3),
            betas(0.9, 0.999),
            number("eps", 0, 1e-8),
            number("weight_decay", 0, 0.0),
            flag("bias_correction", true),
            number("max_coeff", 0, 10.0),
            number("min_coeff", 0, 0.01),
            flag("eps_inside_sqrt", false),
            fixed("amsgrad", KeyKind::kBoolean, "false", "Lamb has no amsgrad; delete it")})},
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
       .description = kNeedsFull,
       .parameters = with_common(
           {number("lr", 0, 1e-2),
            number("beta2_decay", kAny, -0.8),
            number("d", std::numeric_limits<double>::min(), 1.0),
            number("weight_decay", 0, 0.0),
            flag("maximize", false),
            adafactor_eps()},
           /*capturable=*/false)},
      {.name = "Muon",
       .description =
           "not with offload_optimizer, since it needs full parameters; gradients are clipped "
           "before orthogonalization, in every stage; AdamW updates parameters that are not "
           "matrices, or have embed or lm_head in their names: with adam_lr, else lr if that is "
           "given, else 0.0003",
       .parameters = with_common(
           {number("lr", 0, 2e-2),
            own_rate("muon_lr"),
            own_rate("adam_lr"),
            number("momentum", 0, 0.95),
            number("weight_decay", 0, 0.0),
            choice("ns_method", {"gram", "standard"}),
            betas(0.9, 0.95),
            number("eps", 0, 1e-10),
            without_effect("torch_adam", "the update is always one pass over memory"),
            fixed(
                "adam_w_mode",
                KeyKind::kBoolean,
                "true",
                "weight decay is taken from the parameters, never added to gradients; delete it"),
            fixed(
                "per_head_muon",
                KeyKind::kBoolean,
                "false",
                "attention heads are not distinguished; delete it")},
           /*capturable=*/false)},
      mu_adam("MuAdam", "torch's Adam"),
      mu_adam("MuAdamW", "torch's AdamW"),
      {.name = "MuSGD",
       .description =
           kMup + std::string("SGD, with lr * m and weight_decay / m for vectors m times as "
                              "wide; for matrices m is that of fan-out divided by that of fan-in"),
       .parameters = with_common(
           {required_rate(),
            number("momentum", 0, 0.0),
            number("dampening", kAny, 0.0),
            number("weight_decay", 0, 0.0),
            flag("nesterov", false),
            flag("maximize", false),
            flag("decoupled_wd", false)})}};
  add_other_torch_optimizers(types);
  for (const char* name : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    types.push_back(refused_type(
        name, "was removed from DeepSpeed 0.19; write Adam or Lamb, and communication_data_type"));
  }
  return types;
}

}  // namespace

const std::vector<TypeSpec>& optimizer_types() {
  static const std::vector<TypeSpec> types = make_optimizer_types();
  return types;
}

}  // namespace lockstep::ds_config
