#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs a project that adds this repository with FetchContent, for debugging and with shared libraries,
# installs Lockstep from there, and uses the installation. Also configures the project with add_subdirectory.
# Usage: run.sh CMAKE BUILD_FOLDER TORCH_DIR CXX
set -euo pipefail

readonly cmake=$1 build=$2 torch_dir=$3 cxx=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
readonly here root work=$build/subproject_test

fail() {
  printf 'subproject test: %s\n' "$*" >&2
  exit 1
}

# configure HOW [CMAKE_OPTION...]: the rest is as in BUILD_FOLDER.
configure() {
  local how=$1 launcher
  shift
  launcher=$(command -v ccache || true)
  env -i PATH="$PATH" HOME="$HOME" "$cmake" -S "$here" -B "$work/$how" --fresh -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-g1 \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DTorch_DIR="$torch_dir" \
    -DLOCKSTEP_HOW="$how" -DLOCKSTEP_ROOT="$root" -DLOCKSTEP_WERROR=ON "$@"
}

rm -rf "$work"
mkdir -p "$work"
configure add_subdirectory
"$cmake" --install "$work/add_subdirectory" --prefix "$work/prefix" >"$work/install.log"
if [[ -e $work/prefix/include/lockstep ]]; then
  fail "installing the project installs Lockstep's headers"
fi

readonly shared=$work/FetchContent
configure FetchContent -DBUILD_SHARED_LIBS=ON -DLOCKSTEP_INSTALL=ON
"$cmake" --build "$shared" --parallel "$(nproc)"
lockstep=$(find "$shared" -path '*/bin/lockstep' -type f)
[[ -x $lockstep ]] || fail "the command line was not built into a folder bin"
"$lockstep" launch -n 1 "$shared/outside"
"$shared/outside_core"

# The install test, with shared libraries.
version=$("$lockstep" --version)
bash "$here/../install/run.sh" "$cmake" "$shared" "$torch_dir" "$cxx" "${version#lockstep }"
libraries=$(ldd "$shared/install_test/run/outside/outside")
[[ $libraries == *"$shared/install_test/run/prefix/"*liblockstep.so* ]] || fail "the program does not use the installed liblockstep.so:
$libraries"
echo "added by FetchContent and add_subdirectory, built, ran, installed with shared libraries"
