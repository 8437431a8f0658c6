// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/document.h"
#include "lockstep/ds_config/choices.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/key_table.h"
#include "lockstep/ds_config/scalar_values.h"

namespace lockstep::ds_config {

/// A key that the file gives a value that fits.
struct Found {
  const config::Node* value;  // [not null]
  config::Place key;
  std::string other_name = {};  ///< What the file calls it, if that is another name.
  bool is_auto = false;         ///< The value is to be the default.
};

/// Reads a document by a table of keys: says what is wrong with each, and keeps those that are
/// right. Refers to what it is given. Thread safety: none.
class KeyReader {
 public:
  KeyReader(const config::Document& document, Reading& reading)
      : document_(document), reading_(reading) {}

  /// Checks all of a section by the table of keys; "" is the file itself.
  void check(const config::Node& section, const std::string& path);

  /// Checks one key. Whether its value is to be kept: it is right, and says something. `name`: what
  /// messages call it.
  bool check_entry(const KeySpec& spec, const config::Entry& entry, const std::string& name);

  /// Whether the file has one of these keys, at its top, whose value was not right.
  bool has_error_in(const std::vector<std::string>& keys) const;

  /// Null if it is not there, or was not right.
  const Found* find(const std::string& path) const;

  /// Sets `field` to what the file says of `path`; leaves it if that is nothing.
  template <typename T>
  void take(const std::string& path, Resolved<T>& field) const {
    const Found* const found = find(path);
    if (found == nullptr) {
      return;
    }
    field.origin = origin_of(*found);
    if (!found->is_auto) {
      set(*found->value, field.value);
    }
  }

  Origin origin_of(const Found& found) const;

  size_t error_count() const { return reading_.errors.size(); }
  void error(config::Place place, const std::string& what);
  void note(config::Place place, const std::string& what);
  /// For an unknown name.
  void unknown(
      const config::Entry& entry, const std::string& name, const std::vector<std::string>& known);

 private:
  void check_other_name(
      const KeySpec& spec, const config::Node& section, const config::Entry& entry);
  /// What `entry` is without its quotes, after a note; null if it stays as it is.
  const config::Entry* without_quotes(const KeySpec& spec, const config::Entry& entry);
  void keep(const std::string& path, Found found);
  /// For a key such as "fp16.enabled" in `section`, which other tools flatten sections to.
  void unknown_dotted(const config::Entry& entry, const std::string& section);

  static void set(const config::Node& node, bool& value) { value = *truth_of(node); }
  static void set(const config::Node& node, int64_t& value) { value = *integer_of(node); }
  static void set(const config::Node& node, double& value) { value = *number_of(node); }
  static void set(const config::Node& node, std::string& value) { value = node.text; }
  /// A list, or one text that stands for itself.
  static void set(const config::Node& node, std::vector<std::string>& value);
  static void set(const config::Node& node, Dtype& value);
  static void set(const config::Node& node, OffloadDevice& value);
  static void set(const config::Node& node, TagValidation& value);
  static void set(const config::Node& node, AllreduceOp& value);
  template <typename T>
  static void set(const config::Node& node, std::optional<T>& value) {
    set(node, value.emplace());
  }

  const config::Document& document_;
  Reading& reading_;
  std::map<std::string, Found> found_;
  std::deque<config::Entry> unquoted_;  ///< Which `found_` may refer to.
};

}  // namespace lockstep::ds_config
