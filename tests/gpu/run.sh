#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs what needs a GPU: tests/gpu, `lockstep test`, ranks of "two hosts" over NCCL, the Python package.
# Usage: run.sh BUILD_FOLDER
#
# For a machine with a GPU, and torch for CUDA in python3. It may be offline: CMAKE_PREFIX_PATH may name a folder into
# which Debian's libyaml-cpp-dev, libyaml-cpp0.7, nlohmann-json3-dev, libcli11-dev, libgtest-dev, libgmock-dev,
# googletest, libprotozero-dev and zlib1g-dev were unpacked (dpkg -x). 58 files are compiled. Prints the result of each part.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
(($# == 1)) || { echo "run.sh got $# arguments; expected BUILD_FOLDER" >&2 && exit 2; }
mkdir -p "$1"
build=$(cd "$1" && pwd)
failed=0

# part NAME COMMAND...: runs a part, and prints the end of its output.
part() {
  local name=$1 status=0
  shift
  "$@" >"$build/gpu_$name.log" 2>&1 || status=$?
  ((status == 0)) || failed=1
  echo "== $name: exit code $status"
  tail -n 12 "$build/gpu_$name.log"
}

# shellcheck disable=SC2317  # part() calls it.
# Two launchers on this machine, whose ranks NCCL takes for ranks of two hosts. Both use one GPU.
two_hosts() {
  local token host pids=() status=0
  token=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
  for host in 1 0; do
    LOCKSTEP_JOB_TOKEN=$token NCCL_SOCKET_IFNAME=lo LOCKSTEP_DEVICE_COMM=nccl NCCL_HOSTID=$host \
      timeout 120 "$build/bin/lockstep" launch --nnodes 2 --node-rank "$host" -n 1 --master-addr 127.0.0.1 \
      "$build/test/gpu_test" --gtest_filter='GpuJob.*' &
    pids+=($!)
  done
  for host in "${pids[@]}"; do
    wait "$host" || status=$?
  done
  return "$status"
}

if [[ ! -f $build/build.ninja ]]; then
  python=OFF
  headers=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
  [[ ! -f $headers/Python.h ]] || python=ON
  part configure cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_UNITY=ON -DLOCKSTEP_WERROR=OFF \
    -DLOCKSTEP_BUILD_TESTS=ON -DLOCKSTEP_BUILD_EXAMPLES=ON -DLOCKSTEP_BUILD_PYTHON="$python" \
    -DTorch_DIR="$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')/Torch"
fi
targets=(gpu_test lockstep_cli lockstep_selftest)
if grep -q '^LOCKSTEP_BUILD_PYTHON:BOOL=ON' "$build/CMakeCache.txt"; then
  targets+=(lockstep_python)
fi
part build cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}"
((failed == 0)) || exit 1
part tests timeout 300 "$build/test/gpu_test"
part one_rank timeout 120 "$build/bin/lockstep" test -n 1
part two_ranks timeout 120 "$build/bin/lockstep" test -n 2
part two_hosts two_hosts
if [[ " ${targets[*]} " == *" lockstep_python "* ]]; then
  PATH=$build/bin:$PATH PYTHONPATH=$build/python part python timeout 300 python3 -m pytest -q python/tests/test_gpu.py
fi
exit "$failed"
