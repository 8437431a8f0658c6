// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

/// Reads environment variables strictly: what is set and makes no sense is a ConfigError that names
/// the variable, its value and what was expected. A variable that is set but empty counts as not
/// set.
///
/// Thread safety: reading is safe as long as nobody calls setenv.
class Environment {
 public:
  using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

  /// The variables of this process.
  static Environment process();
  /// Made-up variables, for tests.
  static Environment of(std::map<std::string, std::string> values);

  std::optional<std::string> text(const std::string& name) const;
  /// A whole decimal number from `min` to `max`.
  std::optional<int64_t> integer(const std::string& name, int64_t min, int64_t max) const;
  /// 1/0, true/false, yes/no, on/off, in any case.
  std::optional<bool> boolean(const std::string& name) const;

 private:
  explicit Environment(Lookup lookup) : lookup_(std::move(lookup)) {}
  Lookup lookup_;
};

/// `text` as a whole decimal number, or nothing: no spaces, no sign but '-', no trailing
/// characters.
std::optional<int64_t> parse_integer(const std::string& text);

}  // namespace lockstep
