// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/flops_profiler.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

/// "12.50 M", "3.20 G".
std::string short_number(double value) {
  constexpr std::array<const char*, 6> kUnits = {"", " K", " M", " G", " T", " P"};
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) {
    value /= 1000;
  }
  return unit == 0 ? fmt::format("{:g}", value) : fmt::format("{:.2f}{}", value, kUnits[unit]);
}

std::string rate(double flops, double ms) {
  return ms > 0 ? short_number(flops / ms * 1e3) + "FLOPS" : "-";
}

}  // namespace

void FlopsProfile::clear() {
  forward.clear();
  forward_ms = backward_ms = step_ms = 0;
}

std::string render_flops(
    const FlopsProfile& profile, const ds_config::FlopsProfilerSection& section) {
  std::vector<std::pair<std::string, OperationCount>> operations(
      profile.forward.operations().begin(), profile.forward.operations().end());
  std::stable_sort(operations.begin(), operations.end(), [](const auto& a, const auto& b) {
    return a.second.flops > b.second.flops;
  });
  OperationCount all;
  for (const auto& [unused, each] : operations) {
    all.count += each.count;
    all.macs += each.macs;
    all.flops += each.flops;
    all.ms += each.ms;
  }
  const double backward = all.flops * (2 + section.recompute_fwd_factor.value);
  std::string text = fmt::format(
      "flops profiler: one micro-step of update {}, on rank 0 of {}, {} samples\n",
      profile.update + 1,
      profile.ranks,
      profile.micro_batch_size);
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("  {:<34}{}\n", what, value);
  };
  line("parameters", short_number(static_cast<double>(profile.parameters)));
  line("forward MACs", short_number(all.macs));
  line("forward FLOPs", short_number(all.flops));
  line("forward latency", fmt::format("{:.3f} ms", profile.forward_ms));
  line("forward FLOPS", rate(all.flops, profile.forward_ms));
  line(
      "backward FLOPs",
      fmt::format(
          "{} (forward x {:g})", short_number(backward), 2 + section.recompute_fwd_factor.value));
  line("backward latency", fmt::format("{:.3f} ms", profile.backward_ms));
  line("backward FLOPS", rate(backward, profile.backward_ms));
  line(
      "forward and backward FLOPS",
      rate(all.flops + backward, profile.forward_ms + profile.backward_ms));
  line("step latency", fmt::format("{:.3f} ms", profile.step_ms));
  if (operations.empty()) {
    return text + "  no operation was counted: no forward went through engine(batch)";
  }
  text += fmt::format(
      "  {:<34}{:>8}{:>12}{:>12}{:>9}{:>14}\n",
      "operation of forward",
      "count",
      "MACs",
      "FLOPs",
      "share",
      "latency (ms)");
  const auto row = [&](const std::string& name, const OperationCount& each) {
    text += fmt::format(
        "  {:<34}{:>8}{:>12}{:>12}{:>8.1f}%{:>14.3f}\n",
        name,
        each.count,
        short_number(each.macs),
        short_number(each.flops),
        all.flops > 0 ? 100 * each.flops / all.flops : 0,
        each.ms);
  };
  const size_t shown =
      section.detailed.value
          ? operations.size()
          : std::min(operations.size(), static_cast<size_t>(section.top_modules.value));
  for (size_t i = 0; i < shown; ++i) {
    row(operations[i].first, operations[i].second);
  }
  if (shown < operations.size()) {
    text +=
        fmt::format("  ({} more; flops_profiler.detailed shows them)\n", operations.size() - shown);
  }
  text += fmt::format(
      "  {:<75}{:>14.3f}",
      "all else (views, copies, lookups)",
      std::max(0.0, profile.forward_ms - all.ms));
  return text;
}

void report_flops(const FlopsProfile& profile, const ds_config::FlopsProfilerSection& section) {
  const std::string text = render_flops(profile, section);
  if (!section.output_file.value) {
    log_info(text);
    return;
  }
  const std::string& path = *section.output_file.value;
  std::ofstream file(path);
  file << text << "\n";
  file.close();
  if (!file) {
    throw Error(
        "flops_profiler",
        fmt::format(
            "cannot write output_file {} ({}); name one in a folder that is there",
            path,
            section.output_file.origin.text));
  }
  log_info(fmt::format("flops profile of update {}: {}", profile.update + 1, path));
}

}  // namespace lockstep
