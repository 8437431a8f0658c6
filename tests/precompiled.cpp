// SPDX-License-Identifier: Apache-2.0
// CMake precompiles headers for a program.
int main() {
  return 0;
}
