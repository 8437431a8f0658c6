// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/document/document.h"
#include "lockstep/ds_config/choices.h"
#include "lockstep/ds_config/ds_config.h"
#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/keys/scalar_values.h"

namespace lockstep::ds_config {

/// A key with a valid value in the file.
struct KeyValue {
  const config::Node* value;    // [not null]
  config::Place key;            ///< Position of the key.
  std::string other_name = {};  ///< The file's name of it, if different.
  bool is_auto = false;         ///< The default applies.
};

/// Reads a document by a table of keys: reports the errors of each, and keeps the valid ones. Keeps
/// references to its arguments.
class KeyReader {
 public:
  KeyReader(const config::Document& document, Reading& reading)
      : document_(document), reading_(reading) {}

  /// Checks a section by the table of keys; "" is the file itself.
  void check(const config::Node& section, const std::string& path);

  /// Checks one key. Returns whether its value is valid and used. `name`: its name in messages.
  bool check_entry(const KeySpec& spec, const config::Entry& entry, const std::string& name);

  /// Returns whether the file has one of these top-level keys with an invalid value.
  bool has_error_in(const std::vector<std::string>& keys) const;

  /// Returns null if the key is absent or invalid.
  const KeyValue* find(const std::string& path) const;

  /// Sets `field` to the file's value of `path`; leaves it unchanged without one.
  /// `field`: a Resolved, or a FieldRef.
  template <typename Field>
  void take(const std::string& path, Field&& field) const {
    const KeyValue* const found = find(path);
    if (found == nullptr) {
      return;
    }
    field.origin = origin_of(*found);
    if (!found->is_auto) {
      set(*found->value, field.value);
    }
  }

  Origin origin_of(const KeyValue& found) const;

  size_t error_count() const { return reading_.errors.size(); }
  void error(config::Place place, const std::string& what);
  void note(config::Place place, const std::string& what);
  /// Reports an unknown key, with a suggestion from `known`.
  void unknown(
      const config::Entry& entry, const std::string& name, const std::vector<std::string>& known);

 private:
  void check_other_name(
      const KeySpec& spec, const config::Node& section, const config::Entry& entry);
  /// Returns `entry` without its quotes, after a note; null if it stays unchanged.
  const config::Entry* without_quotes(const KeySpec& spec, const config::Entry& entry);
  void keep(const std::string& path, KeyValue found);
  /// Reports a key like "fp16.enabled" in `section`: other tools flatten sections to this form.
  void unknown_dotted(const config::Entry& entry, const std::string& section);

  static void set(const config::Node& node, bool& value) { value = *truth_of(node); }
  static void set(const config::Node& node, int64_t& value) { value = *integer_of(node); }
  static void set(const config::Node& node, double& value) { value = *number_of(node); }
  static void set(const config::Node& node, std::string& value) { value = node.text; }
  static void set(const config::Node& node, std::filesystem::path& value) { value = node.text; }
  /// Reads a list; one text becomes a list of one.
  static void set(const config::Node& node, std::vector<std::string>& value);
  static void set(const config::Node& node, FloatDtype& value);
  static void set(const config::Node& node, OffloadDevice& value);
  static void set(const config::Node& node, TagValidation& value);
  static void set(const config::Node& node, AllreduceOp& value);
  template <typename T>
  static void set(const config::Node& node, std::optional<T>& value) {
    set(node, value.emplace());
  }

  const config::Document& document_;
  Reading& reading_;
  std::map<std::string, KeyValue> found_;
  std::deque<config::Entry> unquoted_;  ///< `found_` may refer to it.
};

}  // namespace lockstep::ds_config
