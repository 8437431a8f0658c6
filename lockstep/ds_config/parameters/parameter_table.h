// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/parameters.h"

namespace lockstep::ds_config {

/// One key of a `params`.
struct ParameterSpec {
  KeySpec key;  ///< Its path is the plain name.
  std::optional<ParameterValue> default_value = std::nullopt;
  bool required = false;
};

/// A value of `type` with its parameters.
struct TypeSpec {
  std::string name;  ///< The file's name: "AdamW", "WarmupLR".
  std::string description = {};
  std::vector<ParameterSpec> parameters = {};
  bool refused = false;  ///< `description` says why, and what to write instead.
};

/// Return the tables of types, in the order of docs/ds_config.md. Thread-safe.
const std::vector<TypeSpec>& optimizer_types();
const std::vector<TypeSpec>& schedule_types();

/// Finds a type by name; in any case if `any_case`. Null if there is none.
const TypeSpec* find_type(
    const std::vector<TypeSpec>& types, const std::string& name, bool any_case);

/// Returns a table of docs/ds_config.md.
TableRows type_rows(const std::vector<TypeSpec>& types);

}  // namespace lockstep::ds_config
