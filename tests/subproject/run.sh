#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs a project that adds this repository with FetchContent, for debugging, and configures it with
# add_subdirectory. Usage: run.sh CMAKE BUILD_FOLDER TORCH_DIR CXX
set -euo pipefail

readonly cmake=$1 build=$2 torch_dir=$3 cxx=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
readonly here root work=$build/subproject_test

fail() {
  printf 'subproject test: %s\n' "$*" >&2
  exit 1
}

configure() {
  local how=$1 launcher
  launcher=$(command -v ccache || true)
  env -i PATH="$PATH" HOME="$HOME" "$cmake" -S "$here" -B "$work/$how" --fresh -G Ninja -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DTorch_DIR="$torch_dir" \
    -DLOCKSTEP_HOW="$how" -DLOCKSTEP_ROOT="$root" -DLOCKSTEP_UNITY=ON -DLOCKSTEP_WERROR=ON \
    -DLOCKSTEP_FMT_ONLY="$build/fmt_only"
}

rm -rf "$work"
mkdir -p "$work"
configure add_subdirectory
configure FetchContent
"$cmake" --build "$work/FetchContent" --parallel "$(nproc)" --target outside outside_core lockstep_cli
lockstep=$(find "$work/FetchContent" -path '*/bin/lockstep' -type f)
[[ -x $lockstep ]] || fail "the command line was not built into a folder bin"
"$lockstep" launch -n 1 "$work/FetchContent/outside"
"$work/FetchContent/outside_core"
"$cmake" --install "$work/FetchContent" --prefix "$work/prefix" >"$work/install.log"
if [[ -e $work/prefix/include/lockstep ]]; then
  fail "installing the project installs Lockstep's headers"
fi
echo "added by FetchContent and add_subdirectory, built, ran"
