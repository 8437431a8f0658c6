#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a new folder, then builds and runs the project beside this
# script against only that folder and torch. Usage: run.sh CMAKE BUILD_FOLDER TORCH_DIR CXX VERSION
set -euo pipefail

# shellcheck source=tests/install/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readonly prefix=$work/prefix

clean "$cmake" --install "$build" --prefix "$prefix" >"$work/install.log"
check_files "$prefix"
check_programs "$prefix"

readonly arguments=(-DCMAKE_PREFIX_PATH="$prefix" -DTorch_DIR="$torch_dir")
build_and_run "${arguments[@]}"
refuse_another_torch "$prefix" "${arguments[@]}"
echo "installed, found, built, ran; another torch is refused"
