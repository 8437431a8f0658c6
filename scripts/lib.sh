# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What ./dev and scripts/ share; to be sourced. Sets `root`, the repository's folder.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly torch_version=2.13.0
# shellcheck disable=SC2034  # used by those who source this file
readonly exit_usage=2

bold='' normal=''
if [[ -t 2 && -z ${NO_COLOR:-} ]]; then
  bold=$'\033[1m' normal=$'\033[0m'
fi

# What is about to happen, on stderr, so that a word's own output stays clean.
say() {
  printf '%s==> %s%s\n' "$bold" "$*" "$normal" >&2
}

# die CODE LINE...: the reason, one line each, and out.
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

# Where .venv's torch package lies, or would lie; empty while there is no .venv.
venv_torch() {
  local folder
  for folder in "$root"/.venv/lib/python3*/site-packages/torch; do
    if [[ -d $folder ]]; then
      printf '%s\n' "$folder"
      return
    fi
  done
}

# The folder of TorchConfig.cmake: LOCKSTEP_TORCH, else Torch_DIR, else the torch in .venv.
torch_cmake_dir() {
  local folder
  if [[ -n ${LOCKSTEP_TORCH:-} ]]; then
    folder=$LOCKSTEP_TORCH/share/cmake/Torch
    [[ -f $folder/TorchConfig.cmake ]] || die "$exit_usage" \
      "LOCKSTEP_TORCH names no torch; got '$LOCKSTEP_TORCH', expected a folder with share/cmake/Torch/TorchConfig.cmake" \
      "(the folder 'torch' of an installed Python package, or an unpacked libtorch); unset it to let ./dev install torch $torch_version"
  elif [[ -n ${Torch_DIR:-} ]]; then
    folder=$Torch_DIR
    [[ -f $folder/TorchConfig.cmake ]] || die "$exit_usage" \
      "Torch_DIR names no torch; got '$Torch_DIR', expected a folder with TorchConfig.cmake" \
      "(usually .../torch/share/cmake/Torch); unset it to let ./dev install torch $torch_version"
  else
    folder=$(venv_torch)/share/cmake/Torch
    [[ -f $folder/TorchConfig.cmake ]] || die 1 "no torch in $root/.venv; run ./dev setup"
  fi
  (cd "$folder" && pwd -P)
}

# Whether the user brings a torch of their own.
own_torch() {
  [[ -n ${LOCKSTEP_TORCH:-} || -n ${Torch_DIR:-} ]]
}

# One compile of a file that sees torch takes up to 2 GiB, so memory bounds the jobs as cores do.
build_jobs() {
  local cores memory_jobs
  cores=$(nproc)
  memory_jobs=$(awk '/^MemAvailable:/ { print int($2 / (2 * 1024 * 1024)) }' /proc/meminfo)
  if ((memory_jobs < 1)); then
    memory_jobs=1
  fi
  printf '%s\n' $((cores < memory_jobs ? cores : memory_jobs))
}
