# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared code of ./dev and scripts/, to be sourced. Sets `root`, the repository's folder.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly torch_version=2.13.0
# The tests also build with these: install.subproject with the oldest, ./dev sanitize with the newest.
# shellcheck disable=SC2034  # used by those who source this file
readonly oldest_torch_version=2.11.0 newest_torch_version=2.15.0
# The wheels of ./dev package --all contain libraries for these.
# shellcheck disable=SC2034  # used by those who source this file
readonly wheel_torch_versions="2.11.0 2.12.1 2.13.0 2.14.1 2.15.0"
# shellcheck disable=SC2034  # used by those who source this file
readonly exit_usage=2

bold='' normal=''
if [[ -t 2 && -z ${NO_COLOR:-} ]]; then
  bold=$'\033[1m' normal=$'\033[0m'
fi

# Prints the next step to stderr, which keeps stdout clean.
say() {
  printf '%s==> %s%s\n' "$bold" "$*" "$normal" >&2
}

# die CODE LINE...: prints the reason, and exits with CODE.
die() {
  local code=$1
  shift
  printf 'dev: %s\n' "$1" >&2
  shift
  if (($# > 0)); then
    printf '     %s\n' "$@" >&2
  fi
  exit "$code"
}

# Prints the folder of the torch package in .venv; nothing if there is none.
venv_torch() {
  local folder
  for folder in "$root"/.venv/lib/python3*/site-packages/torch; do
    if [[ -d $folder ]]; then
      printf '%s\n' "$folder"
      return
    fi
  done
}

# Prints the folder of TorchConfig.cmake: of LOCKSTEP_TORCH, else of Torch_DIR, else of the torch in .venv.
torch_cmake_dir() {
  local folder
  if [[ -n ${LOCKSTEP_TORCH:-} ]]; then
    folder=$LOCKSTEP_TORCH/share/cmake/Torch
    [[ -f $folder/TorchConfig.cmake ]] || die "$exit_usage" \
      "LOCKSTEP_TORCH is not a torch folder; got '$LOCKSTEP_TORCH', expected a folder with share/cmake/Torch/TorchConfig.cmake" \
      "(the folder 'torch' of an installed Python package, or an unpacked libtorch); unset it to let ./dev install torch $torch_version"
  elif [[ -n ${Torch_DIR:-} ]]; then
    folder=$Torch_DIR
    [[ -f $folder/TorchConfig.cmake ]] || die "$exit_usage" \
      "Torch_DIR is not a torch folder; got '$Torch_DIR', expected a folder with TorchConfig.cmake" \
      "(usually .../torch/share/cmake/Torch); unset it to let ./dev install torch $torch_version"
  else
    folder=$(venv_torch)/share/cmake/Torch
    [[ -f $folder/TorchConfig.cmake ]] || die 1 "torch is not installed in $root/.venv; run ./dev setup"
  fi
  (cd "$folder" && pwd -P)
}

# other_torch VERSION: prints the folder for this version of torch.
other_torch() {
  printf '%s/build/torch/%s' "$root" "$1"
}

# Returns whether the user has set another torch.
own_torch() {
  [[ -n ${LOCKSTEP_TORCH:-} || -n ${Torch_DIR:-} ]]
}

# Prints the number of jobs: compiling a file with torch needs up to 2 GiB, so memory is a limit, too.
build_jobs() {
  local cores memory_jobs
  cores=$(nproc)
  memory_jobs=$(awk '/^MemAvailable:/ { print int($2 / (2 * 1024 * 1024)) }' /proc/meminfo)
  if ((memory_jobs < 1)); then
    memory_jobs=1
  fi
  printf '%s\n' $((cores < memory_jobs ? cores : memory_jobs))
}
