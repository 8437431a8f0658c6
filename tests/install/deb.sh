#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Debian package, installs it with dpkg in a new root folder, then builds and runs the project beside this
# script against only that root and torch. Usage: deb.sh CMAKE BUILD_FOLDER TORCH_DIR CXX VERSION
set -euo pipefail

# shellcheck source=tests/install/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readonly target=$work/root
readonly prefix=$target/usr

# in_root ARGUMENTS...: dpkg for the new root. Without root's rights all files are the user's.
in_root() {
  dpkg --root="$target" --force-not-root --log="$work/dpkg.log" "$@"
}

mkdir -p "$target/var/lib/dpkg"/{info,updates}
deb=$("$here/../../scripts/package" deb "$build" "$work")
expect_equal "the file" "${deb##*/}" "lockstep-train_${version}_$(dpkg --print-architecture).deb"
expect_equal "the package's version" "$(dpkg-deb -f "$deb" Version)" "$version"
depends=$(dpkg-deb -f "$deb" Depends)
for name in libc6 libstdc++6 libyaml-cpp-dev nlohmann-json3-dev zlib1g-dev; do
  [[ " $depends," =~ \ "$name"[\ ,] ]] || fail "the package does not depend on $name; got: $depends"
done
series=$(sed -n 's/^set(lockstep_TORCH_SERIES "\(.*\)")/\1/p' "$build/lockstepConfig.cmake")
[[ $(dpkg-deb -f "$deb" Description) == *"need torch $series,"* ]] || fail "the description does not name torch $series"

# The new root has the packages that this one depends on, as this machine has them.
names=$(tr ',' '\n' <<<"$depends" | sed 's/^ *//; s/[ (].*//')
# shellcheck disable=SC2086  # the names are words
dpkg-query -s $names | sed '/^Depends:/d; /^Pre-Depends:/d' >"$target/var/lib/dpkg/status"
in_root -i "$deb" >"$work/install.log" 2>&1 || {
  cat "$work/install.log"
  fail "dpkg could not install the package"
}
check_files "$prefix"
check_api "$prefix"
if readelf -d "$prefix/libexec/lockstep/lockstep_selftest" | grep -e RPATH -e RUNPATH; then
  fail "lockstep_selftest contains a folder of the machine that built it"
fi
check_programs "$prefix" LD_LIBRARY_PATH="${torch_dir%/share/cmake/Torch}/lib"

readonly arguments=(-DCMAKE_PREFIX_PATH="$prefix" -DTorch_DIR="$torch_dir")
build_and_run "${arguments[@]}"
refuse_another_torch "$prefix" "${arguments[@]}"

in_root -r lockstep-train >"$work/remove.log" 2>&1 || {
  cat "$work/remove.log"
  fail "dpkg could not remove the package"
}
if find "$prefix" -type f 2>/dev/null | grep .; then
  fail "files are left after the package was removed"
fi
echo "made, installed, found, built, ran, removed; another torch is refused"
