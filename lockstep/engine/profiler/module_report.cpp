// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/profiler/module_report.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

/// The sums of all modules of one class at one depth.
struct ClassSums {
  double parameters = 0;
  double macs = 0;
  double ms = 0;
};

std::string share(double part, double total) {
  return fmt::format("{:.1f}%", total > 0 ? 100 * part / total : 0);
}

}  // namespace

std::string short_number(double value) {
  constexpr std::array<const char*, 6> kUnits = {"", " K", " M", " G", " T", " P"};
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) {
    value /= 1000;
  }
  return unit == 0 ? fmt::format("{:g}", value) : fmt::format("{:.2f}{}", value, kUnits[unit]);
}

std::string flops_rate(double flops, double ms) {
  constexpr double kMsPerSecond = 1e3;
  return ms > 0 ? short_number(flops / ms * kMsPerSecond) + "FLOPS" : "-";
}

std::string render_classes(
    const ModuleTree& tree,
    const std::vector<ModuleTree::Cost>& costs,
    int64_t module_depth,
    int64_t top_modules) {
  std::map<int, std::map<std::string, ClassSums>> depths;
  for (size_t i = 0; i < tree.modules().size(); ++i) {
    const ModuleTree::Module& module = tree.modules()[i];
    if (module_depth >= 0 && module.depth > module_depth) {
      continue;
    }
    ClassSums& all = depths[module.depth][module.type];
    all.parameters += static_cast<double>(module.parameters);
    all.macs += costs[i].macs;
    all.ms += costs[i].ms;
  }
  std::string text = fmt::format(
      "  top {} module classes at each depth; modules of one class are summed\n", top_modules);
  for (const auto& [depth, classes] : depths) {
    text += fmt::format("  depth {}:\n", depth);
    const auto line = [&, &of = classes](
                          const char* what,
                          double ClassSums::*field,
                          const std::function<std::string(double)>& words) {
      std::vector<std::pair<std::string, double>> most;
      for (const auto& [name, all] : of) {
        most.emplace_back(name, all.*field);
      }
      std::ranges::stable_sort(
          most, [](const auto& a, const auto& b) { return a.second > b.second; });
      most.resize(std::min(most.size(), static_cast<size_t>(top_modules)));
      std::vector<std::string> shown;
      for (const auto& [name, value] : most) {
        shown.push_back(fmt::format("{} {}", name, words(value)));
      }
      text += fmt::format("    {:<14}{}\n", what, fmt::join(shown, ", "));
    };
    line("params", &ClassSums::parameters, short_number);
    line("MACs", &ClassSums::macs, short_number);
    line("fwd latency", &ClassSums::ms, [](double ms) { return fmt::format("{:.3f} ms", ms); });
  }
  return text;
}

std::string render_modules(const ModuleTree& tree, const std::vector<ModuleTree::Cost>& costs) {
  constexpr size_t kIndent = 2;
  std::string text = fmt::format(
      "  {:<34}{:>10}{:>8}{:>12}{:>8}{:>14}{:>8}{:>16}\n",
      "module",
      "params",
      "share",
      "MACs",
      "share",
      "latency (ms)",
      "share",
      "FLOPS");
  bool any_unknown = false;
  for (size_t i = 0; i < tree.modules().size(); ++i) {
    const ModuleTree::Module& module = tree.modules()[i];
    const std::string name =
        module.name.empty() ? module.type : fmt::format("({}) {}", module.name, module.type);
    text += fmt::format(
        "  {:<34}", std::string(static_cast<size_t>(module.depth) * kIndent, ' ') + name);
    if (module.parameters == 0 && i > 0) {
      any_unknown = true;
      text += fmt::format("{:>10}{:>8}{:>12}\n", 0, "-", "-");
      continue;
    }
    const ModuleTree::Cost& cost = costs[i];
    const auto parameters = static_cast<double>(module.parameters);
    text += fmt::format(
        "{:>10}{:>8}{:>12}{:>8}{:>14.3f}{:>8}{:>16}\n",
        short_number(parameters),
        share(parameters, static_cast<double>(tree.modules()[0].parameters)),
        short_number(cost.macs),
        share(cost.macs, costs[0].macs),
        cost.ms,
        share(cost.ms, costs[0].ms),
        flops_rate(cost.flops, cost.ms));
  }
  text +=
      "  An operation counts for the module whose parameters it uses. Other operations count for\n"
      "  the innermost module that holds the parameters used before and after them.\n";
  if (any_unknown) {
    text += "  -: no parameters; operations of this module count for a module that contains it.\n";
  }
  return text;
}

}  // namespace lockstep
