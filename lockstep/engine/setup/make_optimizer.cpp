// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/setup/make_optimizer.h"

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/ds_config/parameters/group_rates.h"
#include "lockstep/optim/rules/adadelta.h"
#include "lockstep/optim/rules/adafactor.h"
#include "lockstep/optim/rules/adagrad.h"
#include "lockstep/optim/rules/adam.h"
#include "lockstep/optim/rules/adamax.h"
#include "lockstep/optim/rules/asgd.h"
#include "lockstep/optim/rules/lamb.h"
#include "lockstep/optim/rules/lion.h"
#include "lockstep/optim/rules/muon.h"
#include "lockstep/optim/rules/nadam.h"
#include "lockstep/optim/rules/radam.h"
#include "lockstep/optim/rules/rmsprop.h"
#include "lockstep/optim/rules/rprop.h"
#include "lockstep/optim/rules/sgd.h"

namespace lockstep {
namespace {

using ds_config::Parameters;
using Made = std::shared_ptr<torch::optim::Optimizer>;

struct Subject {
  const NamedTensors& parameters;
  const optim::InfShapes& mup_shapes;
};

/// Sets each option that the section has by the option's own name.
template <typename Rule>
typename Rule::Options options_of(const Parameters& given) {
  typename Rule::Options options;
  for (const optim::NamedOption& option : Rule::named(options)) {
    if (!given.has(option.name)) {
      continue;
    }
    std::visit(
        [&](auto* value) {
          using Value = std::remove_pointer_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, double>) {
            *value = given.number(option.name);
          } else if constexpr (std::is_same_v<Value, bool>) {
            *value = given.flag(option.name);
          } else if constexpr (std::is_same_v<Value, std::pair<double, double>>) {
            const std::vector<double>& pair = given.numbers(option.name);
            *value = {pair.at(0), pair.at(1)};
          } else if constexpr (std::is_same_v<Value, std::pair<std::optional<double>, double>>) {
            const std::vector<double>& pair = given.numbers(option.name);
            *value = {
                std::isnan(pair.at(0)) ? std::nullopt : std::optional(pair.at(0)), pair.at(1)};
          }
        },
        option.value);
  }
  return options;
}

template <typename Rule>
Made make(const Parameters& given, const Subject& subject) {
  return std::make_shared<optim::RuleOptimizer<Rule>>(
      tensors_of(subject.parameters), options_of<Rule>(given));
}

/// Of maximal update parametrization; `scaling` is its rule for the rates.
template <typename Rule>
Made make_mup(const Parameters& given, const Subject& subject, optim::MupScaling scaling) {
  if (subject.mup_shapes.empty()) {
    throw ConfigError(
        "initialize",
        "the file's optimizer scales rates by how much wider the model is than a base model, which "
        "nobody gave; call optim::set_base_shapes(*net, *base, *delta) before initialize, and give "
        "it what that returns, as mup_shapes");
  }
  const std::vector<optim::MupGroup> groups = optim::mup_groups(
      subject.parameters, subject.mup_shapes, scaling, given.flag("decoupled_wd"));
  return std::make_shared<optim::RuleOptimizer<Rule>>(
      optim::with_options(groups, options_of<Rule>(given)));
}

template <typename Rule>
Made make_mu_adam(const Parameters& given, const Subject& subject) {
  return make_mup<Rule>(given, subject, optim::MupScaling::kAdam);
}

Made make_mu_sgd(const Parameters& given, const Subject& subject) {
  return make_mup<optim::SGDRule>(given, subject, optim::MupScaling::kSgd);
}

Made make_muon(const Parameters& given, const Subject& subject) {
  const ds_config::MuonRates rates = ds_config::muon_rates(given);
  const std::vector<double>& betas = given.numbers("betas");
  optim::MuonOptions matrices{
      .lr = rates.matrices,
      .weight_decay = given.number("weight_decay"),
      .momentum = given.number("momentum"),
      .gram = given.text("ns_method") == "gram",
      .betas = {betas.at(0), betas.at(1)},
      .adam_eps = given.number("eps")};
  optim::MuonOptions others = matrices;
  others.lr = rates.others;
  return std::make_shared<optim::Muon>(optim::muon_groups(subject.parameters, matrices, others));
}

}  // namespace

Made make_optimizer(
    const ds_config::OptimizerSection& section,
    const NamedTensors& parameters,
    const optim::InfShapes& mup_shapes) {
  static const std::map<std::string, Made (*)(const Parameters&, const Subject&)> makers = {
      {"adam", make<optim::AdamRule>},
      {"adamw", make<optim::AdamWRule>},
      {"lamb", make<optim::LAMBRule>},
      {"lion", make<optim::LionRule>},
      {"adagrad", make<optim::AdagradRule>},
      {"sgd", make<optim::SGDRule>},
      {"rmsprop", make<optim::RMSpropRule>},
      {"adafactor", make<optim::AdafactorRule>},
      {"adadelta", make<optim::AdadeltaRule>},
      {"adamax", make<optim::AdamaxRule>},
      {"nadam", make<optim::NAdamRule>},
      {"radam", make<optim::RAdamRule>},
      {"asgd", make<optim::ASGDRule>},
      {"rprop", make<optim::RpropRule>},
      {"muon", make_muon},
      {"muadam", make_mu_adam<optim::AdamRule>},
      {"muadamw", make_mu_adam<optim::AdamWRule>},
      {"musgd", make_mu_sgd}};
  const auto found = makers.find(section.name.value);
  LOCKSTEP_ASSERT(
      found != makers.end(),
      "ds_config knows an optimizer that nobody makes: " + section.name.value);
  return found->second(section.parameters, {parameters, mup_shapes});
}

}  // namespace lockstep
