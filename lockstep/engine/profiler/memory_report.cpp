// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/memory_report.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/DeviceAccelerator.h>

namespace lockstep {
namespace {

/// Reads a line "key:   123 kB".
std::optional<double> gigabytes_of(const char* file, const std::string& key) {
  constexpr double kKibibytes = 1 << 20;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":")) {
      std::istringstream value(line.substr(key.size() + 1));
      double kib = 0;
      return value >> kib ? std::optional(kib / kKibibytes) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::string of_device(c10::Device device) {
  constexpr double kBytes = 1 << 30;
  const auto stats = at::accelerator::getDeviceStats(device.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return fmt::format(
      "device {:.2f} GB (peak {:.2f}), reserved {:.2f}",
      static_cast<double>(stats.allocated_bytes[all].current) / kBytes,
      static_cast<double>(stats.allocated_bytes[all].peak) / kBytes,
      static_cast<double>(stats.reserved_bytes[all].current) / kBytes);
}

}  // namespace

std::string memory_in_use(c10::Device device) {
  std::vector<std::string> parts;
  if (device.is_cuda()) {
    parts.push_back(of_device(device));
  }
  const auto now = gigabytes_of("/proc/self/status", "VmRSS");
  const auto most = gigabytes_of("/proc/self/status", "VmHWM");
  if (now && most) {
    parts.push_back(fmt::format("process {:.2f} GB (peak {:.2f})", *now, *most));
  }
  const auto total = gigabytes_of("/proc/meminfo", "MemTotal");
  const auto available = gigabytes_of("/proc/meminfo", "MemAvailable");
  if (total && available) {
    parts.push_back(fmt::format("host {:.1f} of {:.1f} GB", *total - *available, *total));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace lockstep
