# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared code of run.sh, deb.sh and wheel.sh, which source it with their arguments: CMAKE BUILD_FOLDER TORCH_DIR CXX
# VERSION. Creates the empty folder `work` for their files.

# shellcheck disable=SC2034  # used by those who source this file
readonly cmake=$1 build=$2 torch_dir=$3 cxx=$4 version=$5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
work=$build/install_test/$(basename "$0" .sh)
readonly here work
rm -rf "$work"
mkdir -p "$work"

fail() {
  printf 'install test: %s\n' "$*" >&2
  exit 1
}

# A user's shell has none of our variables.
clean() {
  env -i PATH="$PATH" HOME="$HOME" "$@"
}

# expect_equal WHAT GOT EXPECTED
expect_equal() {
  [[ $2 == "$3" ]] || fail "$1 is '$2', expected '$3'"
}

# package_dir PREFIX: prints the folder of the CMake package, in lib or lib64.
package_dir() {
  dirname "$(find "$1" -name lockstepConfig.cmake)"
}

# check_files PREFIX: checks the installed files, without running the programs.
check_files() {
  local file share=share/man/man1/lockstep.1
  share="$share share/bash-completion/completions/lockstep share/zsh/site-functions/_lockstep"
  share="$share share/fish/vendor_completions.d/lockstep.fish share/doc/lockstep-train/copyright"
  for file in bin/lockstep include/lockstep/base/error.h libexec/lockstep/lockstep_selftest $share; do
    [[ -f $1/$file ]] || fail "$file was not installed"
  done
  if find "$1/include/lockstep" -type f ! -name '*.h' ! -path '*/third_party/nlohmann/*' | grep .; then
    fail "an installed file in include/ is not a header"
  fi
  if grep -rlF -e "$build/" "$(package_dir "$1")"; then
    fail "the installed package points into the build folder"
  fi
}

# check_api PREFIX: checks that the package has the pages of the C++ interface, if doxygen could make them.
check_api() {
  local pages=$1/share/doc/lockstep-train/api
  if ! command -v doxygen >/dev/null; then
    return
  fi
  grep -q 'class.*Accelerator' "$pages/annotated.html" || fail "the package lacks the pages of the C++ interface"
  if grep -rlF "$build/" "$pages"; then
    fail "the pages of the C++ interface name the build folder"
  fi
}

# check_programs PREFIX [VARIABLE=VALUE...]: runs the programs. The variables are those of `lockstep test`.
check_programs() {
  local folder=$1
  shift
  expect_equal "lockstep --version" "$(clean "$folder/bin/lockstep" --version)" "lockstep $version"
  clean "$folder/bin/lockstep" --help >/dev/null
  if ldd "$folder/bin/lockstep" | grep -i -e torch -e "not found"; then
    fail "the lockstep executable links torch, or a library is missing"
  fi
  clean "$@" "$folder/bin/lockstep" test -n 2 >"$work/selftest.log" 2>&1 || {
    cat "$work/selftest.log"
    fail "lockstep test does not pass where it is installed"
  }
}

# configure [ARGUMENTS...]: configures the project beside this script as a user would.
configure() {
  local launcher
  launcher=$(command -v ccache || true)
  clean "$cmake" -S "$here" -B "$work/outside" --fresh -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" "$@"
}

# build_and_run [ARGUMENTS...]: the arguments are those of configure.
build_and_run() {
  configure "$@" | tee "$work/configure.log"
  grep -q "found lockstep $version " "$work/configure.log" || fail "find_package did not find version $version"
  clean "$cmake" --build "$work/outside"
  clean "$work/outside/outside"
  clean "$work/outside/outside_core"
  if ldd "$work/outside/outside_core" | grep -i torch; then
    fail "lockstep::core depends on torch"
  fi
  if ldd "$work/outside/liboutside_shared.so" | grep "not found"; then
    fail "a shared library of the project finds no library of the package"
  fi
}

# expect_refused REASON [ARGUMENTS...]: configure fails, and gives the reason.
expect_refused() {
  local reason=$1
  shift
  if configure "$@" >"$work/refused.log" 2>&1; then
    fail "the project was configured; expected the error '$reason'"
  fi
  # CMake breaks the lines of a message.
  [[ $(tr -s ' \n' ' ' <"$work/refused.log") == *"$reason"* ]] || {
    cat "$work/refused.log"
    fail "the refusal does not say '$reason'"
  }
}

# refuse_another_torch PREFIX [ARGUMENTS...]: a library built for another torch must be refused when it is found, not when
# it crashes. Changes the installed package.
refuse_another_torch() {
  sed -i 's/^set(lockstep_TORCH_SERIES .*/set(lockstep_TORCH_SERIES "1.13")/' "$(package_dir "$1")/lockstepConfig.cmake"
  expect_refused "needs torch 1.13;" "${@:2}"
}
