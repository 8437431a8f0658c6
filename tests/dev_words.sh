#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests ./dev and scripts/bootstrap where they refuse or do nothing. Fake tools on the PATH prevent any
# installation.
# shellcheck disable=SC2016  # the made-up programs expand their own variables
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly root
work=$(mktemp -d)
readonly work
trap 'rm -rf "$work"' EXIT

fail() {
  printf 'dev_words: %s\n' "$1" >&2
  printf '%s\n' "${output:-}" >&2
  exit 1
}

# expect CODE PART COMMAND...: the command ends with CODE and says PART.
expect() {
  local code=$1 part=$2 got=0
  shift 2
  output=$("$@" 2>&1 </dev/null) || got=$?
  ((got == code)) || fail "$* ended with $got, expected $code"
  [[ $output == *"$part"* ]] || fail "$* did not say '$part'"
}

expect 0 "LOCKSTEP_PIP_INDEX_URL" "$root/dev" help
for word in setup build test package docs sanitize fuzz demo fmt lint bench; do
  expect 0 "  $word " "$root/dev"
done
expect 2 "did you mean 'test'?" "$root/dev" tset
expect 2 "did you mean 'setup'?" "$root/dev" stup
expect 2 "unknown word 'qqq'" "$root/dev" qqq
expect 2 "invalid value 'fast' for --preset" "$root/dev" build --preset fast
expect 2 "the value of --preset is missing" "$root/dev" test --preset
expect 2 "unknown argument 'now' of ./dev setup" "$root/dev" setup now
expect 2 "unknown argument '--wheel' of ./dev package" "$root/dev" package --wheel
expect 2 "unknown argument '--pyton' of ./dev package --all" "$root/scripts/wheels" "$work" --pyton 3.11
expect 2 "torch 1.13 is not supported; expected some of these: 2.11" "$root/scripts/wheels" "$work" --torch 1.13
expect 2 "Python 2.6 with its headers is missing" "$root/scripts/wheels" "$work" --python 2.6
expect 2 "unknown argument 'serve' of ./dev docs" "$root/dev" docs serve
expect 2 "'/nowhere' is not a configured build folder" "$root/scripts/package" deb /nowhere "$work"
expect 2 "package got 1 arguments; expected deb|wheel BUILD_FOLDER OUTPUT_FOLDER" "$root/scripts/package" deb
expect 2 "unknown argument '--chek' of ./dev fmt" "$root/dev" fmt --chek
expect 2 "invalid sanitizer 'msan'; expected asan, tsan" "$root/dev" sanitize msan
expect 2 "got 'long'; expected a number of seconds" "$root/dev" fuzz long
expect 2 "unknown group 'nonsense'" "$root/scripts/bootstrap" nonsense

# pip builds the wheel with the torch of .venv.
torch=$(sed -n 's/^readonly torch_version=\([0-9]*\.[0-9]*\)\..*/\1/p' "$root/scripts/lib.sh")
expect 0 "\"torch==$torch.*\"" grep '^requires = ' "$root/pyproject.toml"

# A copy of the scripts, so that no .venv or build folder of the checkout is touched.
chmod 755 "$work"
mkdir -p "$work/repo" "$work/bin"
chmod 777 "$work/repo"
cp -r "$root/scripts" "$root/dev" "$work/repo"
bootstrap=$work/repo/scripts/bootstrap

# fake NAME TEXT: a made-up program, found first.
fake() {
  printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
  chmod 755 "$work/bin/$1"
}
with_fakes=(env -u LOCKSTEP_TORCH -u Torch_DIR PATH="$work/bin:$PATH")
as_user=()
if ((EUID == 0)); then
  as_user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi

# Without root and sudo, on a Debian that lacks every package: the error lists them, and nothing is installed.
fake dpkg-query 'exit 1'
fake apt-get 'echo "apt-get $DEBIAN_FRONTEND $*"; [ "$1" = update ] || exit 99'
fake sudo 'exit 1'
expect 2 $'Run as root:\n       apt-get install --no-install-recommends clang-format git\n' \
  "${as_user[@]}" "${with_fakes[@]}" "$bootstrap" format
[[ $output != *noninteractive* ]] || fail "apt-get ran without root"

# With a sudo that works, apt-get runs through it once, and its failure is reported.
fake sudo 'echo "sudo $*"; [ "$1" = -n ] || exec "$@"'
expect 2 "apt-get noninteractive -o DPkg::Lock::Timeout=300 install -qq -y --no-install-recommends clang-format git" \
  "${as_user[@]}" "${with_fakes[@]}" "$bootstrap" format

# Nothing is missing: the script prints nothing.
fake dpkg-query 'printf installed'
fake apt-get 'echo "apt-get must not run"; exit 99'
expect 0 "" "${as_user[@]}" "${with_fakes[@]}" "$bootstrap" format
[[ -z $output ]] || fail "bootstrap printed text; expected none if nothing is missing"

# LOCKSTEP_TORCH and Torch_DIR are wrong, and .venv is an ordinary folder.
expect 2 "LOCKSTEP_TORCH is not a torch folder; got '/nowhere'" \
  "${with_fakes[@]}" LOCKSTEP_TORCH=/nowhere "$bootstrap" build
expect 2 "Torch_DIR is not a torch folder; got '/nowhere'" "${with_fakes[@]}" Torch_DIR=/nowhere "$bootstrap" build
mkdir -p "$work/repo/.venv"
touch "$work/repo/.venv/diary"
expect 2 "exists and is not a virtual environment" "${with_fakes[@]}" "$bootstrap" build
[[ -f $work/repo/.venv/diary ]] || fail "bootstrap removed a folder that it did not create"

echo "invalid words are refused, and nothing is installed without consent"
