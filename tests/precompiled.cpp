// SPDX-License-Identifier: Apache-2.0
#include "tests/precompiled.h"

// CMake precompiles headers for a program.
int main() {
  return 0;
}
