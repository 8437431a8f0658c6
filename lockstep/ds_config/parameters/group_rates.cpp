// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameters/group_rates.h"

#include <algorithm>

#include "lockstep/ds_config/parameters/parameter_table.h"

namespace lockstep::ds_config {

MuonRates muon_rates(const Parameters& given, std::optional<double> lr) {
  constexpr double kAdamRate = 3e-4;  // DeepSpeed's.
  const double rate = lr.value_or(given.number("lr"));
  const bool has_rate = lr || given.origin("lr").kind != Origin::Kind::kDefault;
  const auto own = [&](const char* name, double otherwise) {
    return given.has(name) ? given.number(name) : otherwise;
  };
  return {.matrices = own("muon_lr", rate), .others = own("adam_lr", has_rate ? rate : kAdamRate)};
}

std::vector<GroupRate> group_rates(const OptimizerSection& section, std::optional<double> lr) {
  if (section.name.value == "muon") {
    const MuonRates rates = muon_rates(section.parameters, lr);
    return {{.what = "matrices", .lr = rates.matrices}, {.what = "others", .lr = rates.others}};
  }
  return {
      {.what = scales_rates(section) ? "those not scaled to the width" : "",
       .lr = lr.value_or(section.parameters.number("lr"))}};
}

bool has_betas(const OptimizerSection& section) {
  return has_option(section, "betas") && section.name.value != "muon";
}

bool has_option(const OptimizerSection& section, const std::string& option) {
  const TypeSpec* const type = find_type(optimizer_types(), section.name.value, true);
  return type != nullptr && std::any_of(
                                type->parameters.begin(),
                                type->parameters.end(),
                                [&](const ParameterSpec& spec) { return spec.key.path == option; });
}

bool scales_rates(const OptimizerSection& section) {
  return section.parameters.has("decoupled_wd");
}

}  // namespace lockstep::ds_config
