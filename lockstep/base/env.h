// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

/// Reads environment variables strictly. Throws ConfigError for an invalid value; it names the
/// variable, its value and the expected values. A variable that is set but empty counts as not set.
///
/// Thread safety: reading is safe as long as no thread calls setenv.
class Environment {
 public:
  using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

  /// Reads the variables of this process.
  static Environment process();
  /// Reads from `values` instead, for tests.
  static Environment of(std::map<std::string, std::string> values);

  std::optional<std::string> text(const std::string& name) const;
  /// Returns a decimal integer from `min` to `max`.
  std::optional<int64_t> integer(const std::string& name, int64_t min, int64_t max) const;
  /// Returns the truth of 1/0, true/false, yes/no, on/off, in any case.
  std::optional<bool> boolean(const std::string& name) const;

 private:
  explicit Environment(Lookup lookup) : lookup_(std::move(lookup)) {}
  Lookup lookup_;
};

/// Parses `text` as a decimal integer. Returns nothing for spaces, a sign other than '-', or
/// trailing characters.
std::optional<int64_t> parse_integer(const std::string& text);

}  // namespace lockstep
