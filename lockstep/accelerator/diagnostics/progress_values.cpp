// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/diagnostics/progress_values.h"

#include <cstdint>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>

#include "lockstep/base/memory/resident_bytes.h"

namespace lockstep::internal {
namespace {

std::optional<double> bytes_in_use(c10::Device device) {
  if (device.is_cpu()) {
    const int64_t bytes = resident_bytes();
    return bytes > 0 ? std::optional(static_cast<double>(bytes)) : std::nullopt;
  }
  if (!device.is_cuda()) {
    return std::nullopt;
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<double>(
      at::accelerator::getDeviceStats(device.index()).allocated_bytes[kAll].current);
}

std::string size_text(double bytes) {
  constexpr double kMega = 1e6;
  constexpr double kGiga = 1e9;
  return bytes < kGiga ? fmt::format("{:.0f} MB", bytes / kMega)
                       : fmt::format("{:.1f} GB", bytes / kGiga);
}

}  // namespace

ProgressValues progress_values(const LossWatch& losses, c10::Device device) {
  ProgressValues values;
  if (const auto loss = losses.last_on_cpu()) {
    values.emplace_back("loss", fmt::format("{:.4g}", *loss));
  }
  if (const auto bytes = bytes_in_use(device)) {
    values.emplace_back("memory", size_text(*bytes));
  }
  return values;
}

}  // namespace lockstep::internal
