#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A wheel with libraries for several minor versions of torch: find_package(lockstep), `lockstep test` and pip's requirement
# choose those of the installed torch. The torches and the libraries are empty. Usage: several_torches.sh CMAKE FOLDER
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
readonly root cmake=$1 work=$2 prefix=$2/prefix site=$2/prefix/lib/python3.11/site-packages
rm -rf "$work"

fail() {
  printf 'several_torches: %s\n' "$*" >&2
  exit 1
}

# put FILE [TEXT]
put() {
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "${2:-}" >"$1"
}

# make_torch VERSION: sets `torch` to a folder with a CMake package of this version.
make_torch() {
  torch=$work/torch-$1/share/cmake/Torch
  # shellcheck disable=SC2016  # CMake expands it
  put "$torch/TorchConfigVersion.cmake" "$(printf 'set(PACKAGE_VERSION "%s")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)' "$1")"
  put "$torch/TorchConfig.cmake"
}

# expect WHAT PART: a command's output, `got`, contains this part.
expect() {
  [[ $(tr -s ' \n' ' ' <<<"$got") == *"$2"* ]] || fail "$1: got '$got', expected '$2'"
}

for minor in 2.9 2.11; do
  put "$prefix/lib/lockstep/torch-$minor/cmake/lockstep/lockstepConfig.cmake" "message(STATUS \"chosen $minor\")"
  put "$prefix/libexec/lockstep/torch-$minor/lockstep_selftest" "#!/bin/sh
echo selftest of $minor with \$*"
  chmod +x "$prefix/libexec/lockstep/torch-$minor/lockstep_selftest"
done
mkdir -p "$prefix/lib/cmake/lockstep"
cp "$root/cmake/lockstepSeveralConfig.cmake" "$prefix/lib/cmake/lockstep/lockstepConfig.cmake"
cp "$root"/cmake/lockstep{FindTorch,Cudart}.cmake "$prefix/lib/cmake/lockstep"
cp "$root/cmake/several_selftests.sh" "$prefix/libexec/lockstep/lockstep_selftest"
put "$work/project/CMakeLists.txt" 'cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES NONE)
find_package(lockstep REQUIRED)'

# find_with VERSION: configures the project with this torch.
find_with() {
  make_torch "$1"
  got=$("$cmake" -S "$work/project" -B "$work/build" --fresh -DCMAKE_PREFIX_PATH="$prefix" -DTorch_DIR="$torch" 2>&1) || true
}
find_with 2.11.1
expect "torch 2.11.1" "chosen 2.11"
find_with 2.9.0+cpu
expect "torch 2.9" "chosen 2.9"
find_with 2.1.0
expect "torch 2.1" "needs torch 2.9 or 2.11; got torch 2.1.0 in"
[[ $got != *chosen* ]] || fail "torch 2.1.0 was not refused: $got"

put "$site/torch/version.py" "__version__ = '2.9.1+cpu'"
got=$("$prefix/libexec/lockstep/lockstep_selftest" --output x)
expect "the selftest" "selftest of 2.9 with --output x"
put "$site/torch/version.py" "__version__ = '2.12.0'"
got=$("$prefix/libexec/lockstep/lockstep_selftest" 2>&1) && fail "the selftest ran without its torch"
expect "the selftest" "this build needs torch 2.9 or 2.11; got 2.12 in this Python environment; run pip install 'torch==2.11.*'"

folders=
for version in 2.9.1 2.11.0 2.13.2; do
  make_torch $version
  folders=${folders:+$folders;}$torch
done
got=$(Torch_DIR=$folders python3 -c "import sys; sys.path.insert(0, '$root/cmake')
import torch_requirement; print(torch_requirement.dynamic_metadata(None, None)['dependencies'][0])")
expect "pip's requirement" "torch>=2.9,<2.14,!=2.10.*,!=2.12.*"
echo "the libraries of the installed torch are chosen; other torches are refused"
