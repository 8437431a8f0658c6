// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/flops_profiler.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/engine/profiler/module_report.h"

namespace lockstep {
namespace {

using Operations = std::map<std::string, OperationCount>;

OperationCount sum_of(const Operations& operations) {
  OperationCount all;
  for (const auto& [unused, each] : operations) {
    all.count += each.count;
    all.macs += each.macs;
    all.flops += each.flops;
    all.ms += each.ms;
  }
  return all;
}

std::string render_operations(const Operations& counted, double forward_ms) {
  std::vector<std::pair<std::string, OperationCount>> operations(counted.begin(), counted.end());
  std::ranges::stable_sort(
      operations, [](const auto& a, const auto& b) { return a.second.flops > b.second.flops; });
  const OperationCount all = sum_of(counted);
  std::string text = fmt::format(
      "  {:<34}{:>8}{:>12}{:>12}{:>9}{:>14}\n",
      "operation of forward",
      "count",
      "MACs",
      "FLOPs",
      "share",
      "latency (ms)");
  for (const auto& [name, each] : operations) {
    text += fmt::format(
        "  {:<34}{:>8}{:>12}{:>12}{:>8.1f}%{:>14.3f}\n",
        name,
        each.count,
        short_number(each.macs),
        short_number(each.flops),
        all.flops > 0 ? 100 * each.flops / all.flops : 0,
        each.ms);
  }
  return text + fmt::format(
                    "  {:<75}{:>14.3f}\n",
                    "all else (views, copies, lookups)",
                    std::max(0.0, forward_ms - all.ms));
}

}  // namespace

void FlopsProfile::clear() {
  forward.clear();
  forward_ms = backward_ms = step_ms = 0;
}

std::string render_flops(
    const FlopsProfile& profile, const ds_config::FlopsProfilerSection& section) {
  const Operations& operations = profile.forward.operations();
  const OperationCount all = sum_of(operations);
  const double backward = all.flops * (2 + section.recompute_fwd_factor.value);
  std::string text = fmt::format(
      "flops profiler: one micro-step of update {}, on rank 0 of {}, {} samples\n",
      profile.update + 1,
      profile.ranks,
      profile.micro_batch_size);
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("  {:<34}{}\n", what, value);
  };
  const auto& modules = profile.modules.modules();
  const int64_t parameters = modules.empty() ? 0 : modules[0].parameters;
  line("parameters", short_number(static_cast<double>(parameters)));
  line("forward MACs", short_number(all.macs));
  line("forward FLOPs", short_number(all.flops));
  line("forward latency", fmt::format("{:.3f} ms", profile.forward_ms));
  line("forward FLOPS", flops_rate(all.flops, profile.forward_ms));
  line(
      "backward FLOPs",
      fmt::format(
          "{} (forward x {:g})", short_number(backward), 2 + section.recompute_fwd_factor.value));
  line("backward latency", fmt::format("{:.3f} ms", profile.backward_ms));
  line("backward FLOPS", flops_rate(backward, profile.backward_ms));
  line(
      "forward and backward FLOPS",
      flops_rate(all.flops + backward, profile.forward_ms + profile.backward_ms));
  line("step latency", fmt::format("{:.3f} ms", profile.step_ms));
  if (operations.empty()) {
    return text + "  no operation was counted: the program has not called engine(batch)\n";
  }
  const std::vector<ModuleTree::Cost>& costs = profile.forward.modules();
  text +=
      render_classes(profile.modules, costs, section.module_depth.value, section.top_modules.value);
  if (section.detailed.value) {
    text += render_modules(profile.modules, costs);
    text += render_operations(operations, profile.forward_ms);
  }
  return text;
}

void report_flops(const FlopsProfile& profile, const ds_config::FlopsProfilerSection& section) {
  const std::string text = render_flops(profile, section);
  if (!section.output_file.value) {
    log_info(text.substr(0, text.size() - 1));  // The log ends lines itself.
    return;
  }
  const std::string& path = *section.output_file.value;
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) {
    throw Error(
        "flops_profiler",
        fmt::format(
            "output_file {} ({}) cannot be written; name a file in an existing folder",
            path,
            section.output_file.origin.text));
  }
  log_info(fmt::format("flops profile of update {}: {}", profile.update + 1, path));
}

}  // namespace lockstep
