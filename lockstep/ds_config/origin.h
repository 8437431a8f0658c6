// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::ds_config {

/// Who said a value.
struct Origin {
  enum class Kind { kDefault, kFile, kDerived };
  Kind kind = Kind::kDefault;
  /// kFile: "path:line:column", and behind it which old key was used. kDerived: from what.
  /// kDefault: empty, or why it is the default although the file says something.
  std::string text = {};
};

/// "default", "default: ...", "derived: ..." or "ds.json:3:5".
std::string described(const Origin& origin);

/// A value and who said it.
template <typename T>
struct Resolved {
  T value{};
  Origin origin = {};
};

}  // namespace lockstep::ds_config
