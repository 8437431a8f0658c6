// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::cli {

/// Facts about the build of this program, from CMake. Unknown facts are empty.
struct BuildFacts {
  const char* version;
  const char* commit;
  const char* type;
  const char* compiler;
  const char* flags;
  const char* torch;  ///< The version of torch that the library was built with, or those of a wheel
                      ///< with several.
};

extern const BuildFacts kBuild;

}  // namespace lockstep::cli
