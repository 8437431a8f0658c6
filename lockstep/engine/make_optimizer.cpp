// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/make_optimizer.h"

#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/adafactor.h"
#include "lockstep/optim/adagrad.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/lion.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"

namespace lockstep {
namespace {

using ds_config::Parameters;
using Made = std::shared_ptr<torch::optim::Optimizer>;

/// Sets each option that the section has by the option's own name.
template <typename Rule>
Made make(const Parameters& given, const std::vector<at::Tensor>& parameters) {
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
          }
        },
        option.value);
  }
  return std::make_shared<optim::RuleOptimizer<Rule>>(parameters, options);
}

}  // namespace

Made make_optimizer(
    const ds_config::OptimizerSection& section, const std::vector<at::Tensor>& parameters) {
  static const std::map<std::string, Made (*)(const Parameters&, const std::vector<at::Tensor>&)>
      makers = {
          {"adam", make<optim::AdamRule>},
          {"adamw", make<optim::AdamWRule>},
          {"lamb", make<optim::LAMBRule>},
          {"lion", make<optim::LionRule>},
          {"adagrad", make<optim::AdagradRule>},
          {"sgd", make<optim::SGDRule>},
          {"rmsprop", make<optim::RMSpropRule>},
          {"adafactor", make<optim::AdafactorRule>}};
  const auto found = makers.find(section.name.value);
  LOCKSTEP_ASSERT(
      found != makers.end(),
      "ds_config knows an optimizer that nobody makes: " + section.name.value);
  return found->second(section.parameters, parameters);
}

}  // namespace lockstep
