// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/config_file.h"
#include "lockstep/config/document.h"
#include "lockstep/config/settings.h"

namespace lockstep::config {

/// A map in a file that another program wrote, read as that program reads it: quotes make no
/// difference, and null is as good as absent. Refers to what it is given.
class Section {
 public:
  /// `prefix`: what messages put before a key, "deepspeed_config.". ConfigError if `map` is none.
  Section(const Document& file, const Node& map, std::string prefix);

  /// Nothing if it is absent or null; ConfigError if it is a list or map.
  std::optional<std::string> text(const std::string& key) const;
  /// False if it is absent; ConfigError if it is no truth value.
  bool truth(const std::string& key) const;
  /// Takes `key`, if it is there, over as `setting`. ConfigError if that cannot have this value.
  void set(ConfigValues& values, const std::string& key, const std::string& setting) const;
  /// ConfigError for the first key that is none of `known`.
  void refuse_unknown(const std::vector<std::string>& known) const;
  /// "file:line:column" of a value; of the map if it is absent.
  std::string place_of(const std::string& key) const;

 private:
  const Document& file_;
  const Node& map_;
  std::string prefix_;
};

}  // namespace lockstep::config
