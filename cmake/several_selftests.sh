#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program lockstep_selftest of a wheel with libraries for several minor versions of torch: runs the one for the torch
# in the Python environment that contains this file.
folder=$(dirname "$0")
version=$(sed -n "s/^__version__ = '\([0-9]*\.[0-9]*\).*/\1/p" "$folder"/../../lib/python3.*/site-packages/torch/version.py)
if [ ! -x "$folder/torch-$version/lockstep_selftest" ]; then
  known=$(cd "$folder" && printf '%s\n' torch-* | sed 's/torch-//' | sort -V)
  echo "[lockstep] this build needs torch $(echo "$known" | paste -sd '|' | sed 's/|/ or /g'); got ${version:-no torch} in this Python" \
    "environment; run pip install 'torch==$(echo "$known" | tail -n 1).*'" >&2
  exit 1
fi
exec "$folder/torch-$version/lockstep_selftest" "$@"
