// SPDX-License-Identifier: Apache-2.0
#include "cli/common/build_facts.h"

#include <lockstep_commit.h>  // Made by CMake, in the build folder.

namespace lockstep::cli {

#ifdef __clang__
#define LOCKSTEP_COMPILER "clang "
#else
#define LOCKSTEP_COMPILER "gcc "
#endif

const BuildFacts kBuild = {
    .version = LOCKSTEP_VERSION,
    .commit = LOCKSTEP_COMMIT,
    .type = LOCKSTEP_BUILD_TYPE,
    .compiler = LOCKSTEP_COMPILER __VERSION__,
    .flags = LOCKSTEP_BUILD_FLAGS,
    .torch = LOCKSTEP_BUILD_TORCH};

}  // namespace lockstep::cli
