// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/ds_config/key_table.h"
#include "lockstep/ds_config/parameters.h"

namespace lockstep::ds_config {

/// One key of a `params`.
struct ParameterSpec {
  KeySpec key;  ///< Its path is the bare name.
  std::optional<ParameterValue> default_value = std::nullopt;
  bool required = false;
};

/// What may be written as a `type`.
struct TypeSpec {
  std::string name;  ///< As the file has it: "AdamW", "WarmupLR".
  std::string words = {};
  std::vector<ParameterSpec> parameters = {};
  bool refused = false;  ///< `words` says why, and what to write instead.
};

/// Each in the order of docs/ds_config.md. Thread-safe.
const std::vector<TypeSpec>& optimizer_types();
const std::vector<TypeSpec>& schedule_types();

/// By name; in any case if `any_case`. Null if there is none.
const TypeSpec* find_type(
    const std::vector<TypeSpec>& types, const std::string& name, bool any_case);

/// The rows of a table in docs/ds_config.md.
std::string render_type_table(const std::vector<TypeSpec>& types);

}  // namespace lockstep::ds_config
