// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/ds_config/parameters.h"

namespace lockstep::ds_config {

/// Of Muon's two groups.
struct MuonRates {
  double matrices = 0;
  double others = 0;
};
/// `lr`: in the place of the file's.
MuonRates muon_rates(const Parameters& given, std::optional<double> lr = std::nullopt);

/// A parameter group that a file's optimizer makes.
struct GroupRate {
  std::string what;  ///< Which parameters: "matrices"; empty: all.
  double lr = 0;     ///< Before any schedule.
};

/// What the optimizer makes of the parameters, as far as a file says: one group; of Muon the
/// matrices and the others, of which a model may lack either; of muP's the one whose rate is not
/// scaled to the model's width. `lr`: in the place of the file's.
std::vector<GroupRate> group_rates(
    const OptimizerSection& section, std::optional<double> lr = std::nullopt);

/// Whether the optimizer has a parameter of that name, whatever became of the file's.
bool has_option(const OptimizerSection& section, const std::string& option);
/// Whether all its groups have betas, as DeepSpeed's OneCycle asks.
bool has_betas(const OptimizerSection& section);

/// muP's optimizers, whose groups depend on the model.
bool scales_rates(const OptimizerSection& section);

}  // namespace lockstep::ds_config
