// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::storage {

/// Reads the values of a JSON object in a checkpoint, each with a required type and range. A
/// checksum proves that they are unchanged, not that a valid program wrote them. Throws
/// CheckpointError, naming the file and the key, for invalid ones. Keeps a reference to the object.
///
/// Thread safety: immutable.
class SavedValues {
 public:
  /// `where`: the part of the file, for messages: "meta", "[0]"; empty for the complete file.
  SavedValues(const nlohmann::json& object, std::string path, std::string where = "");

  bool has(const char* key) const;
  bool flag(const char* key) const;
  std::string text(const char* key) const;
  double number(const char* key) const;
  /// Returns an integer from `least` to `most`.
  int64_t count(
      const char* key, int64_t least = 0, int64_t most = std::numeric_limits<int64_t>::max()) const;
  std::vector<int64_t> counts(
      const char* key, int64_t most = std::numeric_limits<int64_t>::max()) const;
  std::vector<double> numbers(const char* key) const;
  /// Returns a list of `size` elements; of any number if `size` is negative.
  const nlohmann::json& list(const char* key, int64_t size = -1) const;
  const nlohmann::json& any(const char* key) const;
  /// Returns a nested object.
  SavedValues object(const char* key) const;
  /// Throws the error for a value that the caller found invalid.
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

  const std::string& path() const { return path_; }
  /// Returns the position of a key in the file, such as "meta.processes".
  std::string place_of(const std::string& key) const;

 private:
  [[noreturn]] void refuse_value(
      const std::string& place, const nlohmann::json& got, const std::string& expected) const;
  int64_t count_at(
      const std::string& place, const nlohmann::json& value, int64_t least, int64_t most) const;

  const nlohmann::json* object_;
  std::string path_;
  std::string where_;
};

}  // namespace lockstep::storage
