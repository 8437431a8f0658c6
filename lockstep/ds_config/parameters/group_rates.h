// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/ds_config/parameters.h"

namespace lockstep::ds_config {

/// The rates of Muon's two groups.
struct MuonRates {
  double matrices = 0;
  double others = 0;
};
/// Returns Muon's rates. `lr`: replaces the file's.
MuonRates muon_rates(const Parameters& given, std::optional<double> lr = std::nullopt);

/// A parameter group of a file's optimizer.
struct GroupRate {
  std::string what;  ///< Its parameters: "matrices"; empty: all.
  double lr = 0;     ///< Before any schedule.
};

/// Returns the groups of the optimizer as far as the file determines them: one group. Muon has the
/// matrices and the others, either of which a model may lack; muP has the group whose rate is not
/// scaled. `lr`: replaces the file's.
std::vector<GroupRate> group_rates(
    const OptimizerSection& section, std::optional<double> lr = std::nullopt);

/// Returns whether the optimizer has a parameter of that name, set or not.
bool has_option(const OptimizerSection& section, const std::string& option);
/// Returns whether all its groups have betas, which DeepSpeed's OneCycle requires.
bool has_betas(const OptimizerSection& section);

/// Returns whether it is one of muP's optimizers, whose groups depend on the model.
bool scales_rates(const OptimizerSection& section);

}  // namespace lockstep::ds_config
