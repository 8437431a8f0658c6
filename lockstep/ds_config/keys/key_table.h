// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "lockstep/ds_config/ds_config.h"

namespace lockstep::ds_config {

enum class KeyKind {
  kBoolean,
  kInteger,   ///< A whole number from `least` to `most`; 5e8 is one, 1.5 is not.
  kNumber,    ///< A number from `least` to `most`.
  kNumbers,   ///< A number, or a list with one for each parameter group.
  kPair,      ///< A list of two numbers.
  kIntegers,  ///< A list of whole numbers.
  kText,
  kTexts,    ///< A list of texts, or one.
  kChoice,   ///< One of `choices`, in any case.
  kSection,  ///< Contains further keys.
  kMaps,     ///< A list of sections, which a rule reads.
  kParams,   ///< A section whose keys depend on the `type` next to it: see parameter_table.h.
  kAny       ///< Always refused.
};

enum class KeyStatus {
  kWorks,    ///< Checked, and part of DsConfig.
  kIgnored,  ///< Checked, and a note says why it has no effect.
  kRefused   ///< An error, except for `accepted_value`.
};

/// The treatment of "auto", which Hugging Face's Trainer and Accelerate fill in for DeepSpeed.
enum class AutoRule {
  kRefused,  ///< An error that asks for the value.
  kDefault   ///< As if the key were missing.
};

/// The value of a key in a DsConfig, and the value's origin.
template <typename T>
struct FieldRef {
  T& value;
  Origin& origin;
};

template <typename... T>
using AnyFieldOf = std::variant<std::monostate, FieldRef<T> (*)(DsConfig&, const std::string&)...>;
/// Gives the members of a DsConfig for the key at a path.
using FieldOf = AnyFieldOf<
    bool,
    int64_t,
    double,
    std::string,
    std::filesystem::path,
    std::vector<std::string>,
    AllreduceOp,
    OffloadDevice,
    TagValidation,
    std::optional<bool>,
    std::optional<int64_t>,
    std::optional<std::string>,
    std::optional<FloatDtype>,
    std::optional<std::vector<std::string>>>;

/// Describes one key of ds_config.json: parsing, checking, `lockstep ds-config check` and `keys`,
/// and docs/ds_config.md read this row. The default is that of `field` in DsConfig. Rules between
/// keys are in ds_config/rules, and the translation to Lockstep's options is in engine/setup.
struct KeySpec {
  std::string path;  ///< "fp16.enabled".
  KeyKind kind = KeyKind::kAny;
  KeyStatus status = KeyStatus::kWorks;
  /// kWorks: its meaning. kIgnored: why it has no effect. kRefused: why, and what to do instead.
  std::string description = {};
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
  std::vector<std::string> choices = {};
  AutoRule auto_rule = AutoRule::kDefault;
  bool may_be_null = false;         ///< null means missing.
  bool may_be_quoted = false;       ///< A quoted number is accepted, with a note.
  bool first_may_be_null = false;   ///< kPair: the first number may be null, which is NaN.
  std::string accepted_value = {};  ///< kRefused: the one value that is accepted.
  std::string successor = {};       ///< Path of the key of which this is another name.
  FieldOf field = {};               ///< Holds the value, unless a separate rule reads it.
};

/// Returns every key, sections before their keys, in the order of docs/ds_config.md. Thread-safe.
const std::vector<KeySpec>& all_keys();

/// Calls `visit(path, field)` for each key that has a field, in the order of all_keys().
template <typename Visit>
void visit_fields(DsConfig& config, const Visit& visit) {
  for (const KeySpec& spec : all_keys()) {
    std::visit(
        [&](auto field) {
          if constexpr (!std::is_same_v<decltype(field), std::monostate>) {
            visit(spec.path, field(config, spec.path));
          }
        },
        spec.field);
  }
}
template <typename Visit>
void visit_fields(const DsConfig& config, const Visit& visit) {
  DsConfig copy = config;  // Fields are references to members that may change.
  visit_fields(copy, visit);
}

/// Returns null for an unknown path.
const KeySpec* find_key(const std::string& path);

/// Returns the key names of a section; "" is the file itself.
std::vector<std::string> keys_of(const std::string& section);

/// A table in Markdown, row by row. The first row has the headings.
using TableRows = std::vector<std::vector<std::string>>;

/// Returns the table of docs/ds_config.md, with the defaults of DsConfig.
TableRows key_rows();

/// Formats a table as Markdown.
std::string render_markdown(const TableRows& rows);

}  // namespace lockstep::ds_config
