// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::cli {

/// How this program was built, as CMake knew it. Empty where it did not.
struct BuildFacts {
  const char* version;
  const char* commit;
  const char* type;
  const char* compiler;
  const char* flags;
  const char* torch;  ///< The version that programs on the library need, up to the minor one.
};

extern const BuildFacts kBuild;

}  // namespace lockstep::cli
