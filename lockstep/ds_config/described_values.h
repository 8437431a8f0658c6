// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/ds_config/ds_config.h"

namespace lockstep::ds_config {

/// One value of a configuration, for a report.
struct DescribedValue {
  std::string path;      ///< "optimizer.params.lr".
  nlohmann::json value;  ///< As the file would say it.
  std::string origin;    ///< Who said it, as `described` has it.
};

/// All of them: batch sizes, optimizer, scheduler, precision, then the keys in the table's order.
/// Thread-safe.
std::vector<DescribedValue> described_values(const DsConfig& config);

}  // namespace lockstep::ds_config
