// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/config/settings/setting_table.h"

/// The rows of the table of settings, one function for each heading of `lockstep launch --help`.
namespace lockstep::config {

inline constexpr int kMostCount = std::numeric_limits<int>::max();
inline constexpr int kMostRanks = 1 << 20;
inline constexpr int kLastPort = 65535;
inline constexpr int kDaySeconds = 86400;
inline constexpr int kYearSeconds = 366 * kDaySeconds;
inline constexpr double kShortestSeconds = 0.001;

bool is_number_in(const std::string& text, int64_t min, int64_t max);

std::vector<SettingSpec> job_rows();
std::vector<SettingSpec> host_rows();
std::vector<SettingSpec> monitoring_rows();
std::vector<SettingSpec> output_rows();
std::vector<SettingSpec> environment_rows();

}  // namespace lockstep::config
