// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::ds_config {

/// The origin of a value.
struct Origin {
  enum class Kind { kDefault, kFile, kDerived };
  Kind kind = Kind::kDefault;
  /// kFile: "path:line:column", and the old key, if used. kDerived: the source. kDefault: empty, or
  /// why the default applies although the file has the key.
  std::string text = {};
};

/// Formats "default", "default: ...", "derived: ..." or "ds.json:3:5".
std::string described(const Origin& origin);

/// A value and its origin.
template <typename T>
struct Resolved {
  T value{};
  Origin origin = {};
};

}  // namespace lockstep::ds_config
