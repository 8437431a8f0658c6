// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/document/document.h"
#include "lockstep/config/settings/settings.h"

namespace lockstep::config {

/// A map of a file that another program wrote, with that program's rules: quotes make no
/// difference, and null means absent. Keeps references to its arguments.
class Section {
 public:
  /// Throws ConfigError if `map` is not a map. `prefix`: the text before a key in messages,
  /// "deepspeed_config.".
  Section(const Document& file, const Node& map, std::string prefix);

  /// Returns a value; nothing if the key is absent or null. Throws ConfigError for a list or map.
  std::optional<std::string> text(const std::string& key) const;
  /// Returns a boolean; false if the key is absent. Throws ConfigError for another value.
  bool truth(const std::string& key) const;
  /// Copies `key`, if present, to `setting`. Throws ConfigError for an impossible value.
  void set(ConfigValues& values, const std::string& key, const std::string& setting) const;
  /// Throws ConfigError for the first key that is not in `known`.
  void refuse_unknown(const std::vector<std::string>& known) const;
  /// Returns "file:line:column" of a value; of the map if the key is absent.
  std::string place_of(const std::string& key) const;

 private:
  const Document& file_;
  const Node& map_;
  std::string prefix_;
};

}  // namespace lockstep::config
