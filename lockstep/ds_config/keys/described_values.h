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
  nlohmann::json value;  ///< In the file's form.
  std::string origin;    ///< Its origin, from `described`.
};

/// Returns all values: batch sizes, optimizer, scheduler, precision, then the keys in the table's
/// order. Thread-safe.
std::vector<DescribedValue> described_values(const DsConfig& config);

}  // namespace lockstep::ds_config
