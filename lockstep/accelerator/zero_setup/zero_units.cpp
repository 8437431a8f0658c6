// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/zero_setup/zero_units.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/class_name.h"

namespace lockstep::internal {

std::vector<std::vector<at::Tensor>> units_of(
    const NamedTensors& parameters,
    const NamedClasses& modules,
    const std::vector<std::string>& classes) {
  std::set<std::string> known;
  std::vector<std::string> paths;
  for (const auto& [path, type] : modules) {
    const std::string name = plain_class_name(type);
    known.insert(name);
    if (std::find(classes.begin(), classes.end(), name) != classes.end()) {
      paths.push_back(path.empty() ? "" : path + ".");
    }
  }
  for (const std::string& name : classes) {
    if (!known.contains(name)) {
      throw ConfigError(
          "zero",
          fmt::format(
              "no module of the model is a {}; its modules are {}", name, fmt::join(known, ", ")));
    }
  }
  // Modules come before those within them.
  std::vector<std::vector<at::Tensor>> units(paths.size());
  for (const NamedTensor& item : parameters) {
    const auto found = std::find_if(paths.begin(), paths.end(), [&](const std::string& path) {
      return item.name.starts_with(path);
    });
    if (found != paths.end()) {
      units[static_cast<size_t>(found - paths.begin())].push_back(item.tensor);
    }
  }
  return units;
}

}  // namespace lockstep::internal
