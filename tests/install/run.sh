#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a new folder, then builds and runs the project beside this
# script against only that folder and torch. Usage: run.sh CMAKE BUILD_FOLDER TORCH_DIR CXX
set -euo pipefail

readonly cmake=$1 build=$2 torch_dir=$3 cxx=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
readonly here work=$build/install_test
readonly prefix=$work/prefix

fail() {
  printf 'install test: %s\n' "$*" >&2
  exit 1
}

# A user's shell has none of our variables.
clean() {
  env -i PATH="$PATH" HOME="$HOME" "$@"
}

configure() {
  local launcher
  launcher=$(command -v ccache || true)
  clean "$cmake" -S "$here" -B "$work/outside" --fresh -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" \
    -DCMAKE_PREFIX_PATH="$prefix" -DTorch_DIR="$torch_dir"
}

rm -rf "$work"
mkdir -p "$work"
clean "$cmake" --install "$build" --prefix "$prefix" >"$work/install.log"

share=share/man/man1/lockstep.1
share="$share share/bash-completion/completions/lockstep share/zsh/site-functions/_lockstep"
share="$share share/fish/vendor_completions.d/lockstep.fish"
for file in bin/lockstep include/lockstep/base/error.h libexec/lockstep/lockstep_selftest $share; do
  [[ -f $prefix/$file ]] || fail "$file was not installed"
done
if find "$prefix/include" -type f ! -name '*.h' | grep .; then
  fail "an installed file in include/ is not a header"
fi
clean "$prefix/bin/lockstep" --help >/dev/null
clean "$prefix/bin/lockstep" test -n 2 >"$work/selftest.log" || {
  cat "$work/selftest.log"
  fail "lockstep test does not pass where it is installed"
}
if ldd "$prefix/bin/lockstep" | grep -i torch; then
  fail "the lockstep executable links torch"
fi

configure
if grep -rlF -e "$build/" --include='*.cmake' --exclude-dir=outside "$prefix"; then
  fail "the installed package points into the build folder"
fi
clean "$cmake" --build "$work/outside"
clean "$work/outside/outside"
clean "$work/outside/outside_core"
if ldd "$work/outside/outside_core" | grep -i torch; then
  fail "lockstep::core depends on torch"
fi

# A library built for another torch must be refused when it is found, not when it crashes.
config=$(find "$prefix" -name lockstepConfig.cmake)
sed -i 's/^set(lockstep_TORCH_SERIES .*/set(lockstep_TORCH_SERIES "1.13")/' "$config"
if configure >"$work/refused.log" 2>&1; then
  fail "a library built for torch 1.13 was accepted beside the torch in $torch_dir"
fi
grep -q "needs torch 1.13;" "$work/refused.log" || {
  cat "$work/refused.log"
  fail "the refusal gives no reason"
}
echo "installed, found, built, ran; another torch is refused"
