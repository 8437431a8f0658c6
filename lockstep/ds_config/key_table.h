// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace lockstep::ds_config {

enum class KeyKind {
  kBoolean,
  kInteger,  ///< A whole number from `least` to `most`; 5e8 is one, 1.5 is not.
  kNumber,   ///< From `least` to `most`.
  kNumbers,  ///< A number, or a list with one for each parameter group.
  kPair,     ///< A list of two numbers.
  kWholes,   ///< A list of whole numbers.
  kText,
  kTexts,    ///< A list of texts, or one.
  kChoice,   ///< One of `choices`, in any case.
  kSection,  ///< Keys of its own.
  kParams,   ///< A section whose keys depend on `type` beside it: see parameter_table.h.
  kAnything  ///< What is refused whatever it is.
};

enum class KeyStatus {
  kWorks,    ///< Checked, and part of DsConfig.
  kNothing,  ///< Checked, and a note says why nothing is needed.
  kRefused   ///< An error, but for `fine`, the value that says what happens anyway.
};

/// What becomes of "auto", which Hugging Face's Trainer and Accelerate fill in for DeepSpeed.
enum class AutoRule {
  kRefused,  ///< An error that asks for the value.
  kDefault   ///< As if the key were not there.
};

/// What is known of one key of ds_config.json.
struct KeySpec {
  std::string path;  ///< "fp16.enabled".
  KeyKind kind = KeyKind::kAnything;
  KeyStatus status = KeyStatus::kWorks;
  /// kWorks: what it means. kNothing: why nothing is needed. kRefused: why, and what to do instead.
  std::string words = {};
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
  std::vector<std::string> choices = {};
  AutoRule auto_rule = AutoRule::kDefault;
  bool may_be_null = false;        ///< null is as if the key were not there.
  bool may_be_quoted = false;      ///< A number in quotes is that number, with a note.
  bool first_may_be_null = false;  ///< Of a kPair, whose first number is NaN then.
  std::string fine = {};           ///< Of kRefused.
  std::string successor = {};      ///< Of another name of a key: that key's path.
};

/// Every key, sections before what they hold, in the order of docs/ds_config.md. Thread-safe.
const std::vector<KeySpec>& all_keys();

/// Null if there is none of that path.
const KeySpec* find_key(const std::string& path);

/// The names of what a section holds; "" is the file itself.
std::vector<std::string> keys_of(const std::string& section);

/// The rows of the table in docs/ds_config.md, whose defaults are those of DsConfig.
std::string render_key_table();

}  // namespace lockstep::ds_config
