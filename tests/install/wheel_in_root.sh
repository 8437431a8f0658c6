#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a wheel with pip in a root folder of another Linux, and runs it there: `import lockstep`, two processes that train,
# `lockstep test`. For a person, as root; no test of ctest. Usage: wheel_in_root.sh ROOT PYTHON WHEEL FOLDER
#
# ROOT is from `debootstrap --variant=minbase --include=python3,python3-venv SUITE ROOT`. PYTHON is an interpreter in it, such
# as /usr/bin/python3. FOLDER has the wheels of torch, numpy, safetensors and what they need, from `pip download`.
set -euo pipefail

(($# == 4)) || { echo "usage: wheel_in_root.sh ROOT PYTHON WHEEL FOLDER" >&2 && exit 2; }
root=$(cd "$1" && pwd -P)
readonly root python=$2 wheel=$3 folder=$4
trap 'umount "$root/proc" "$root/dev/shm" 2>/dev/null || true; rm -rf "$root/lockstep_try"' EXIT
mkdir -p "$root/lockstep_try/wheels" "$root/dev/shm"
mount -t proc proc "$root/proc"
mount -t tmpfs -o size=1g tmpfs "$root/dev/shm"
cp "$folder"/*.whl "$wheel" "$root/lockstep_try/wheels"
cat >"$root/lockstep_try/train.py" <<'PYTHON'
import torch
from lockstep import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(2, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1), loader)
for (batch,) in loader:
    accelerator.backward(model(batch).pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
print("trained", accelerator.num_processes, [value.detach().sum().item() for value in model.parameters()], flush=True)
PYTHON
chroot "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root OMP_NUM_THREADS=1 bash -ec "
  cd /lockstep_try
  ldd --version | head -n 1
  '$python' -m venv venv
  venv/bin/pip --disable-pip-version-check install --quiet --no-index --find-links wheels lockstep-train
  venv/bin/python -c 'import lockstep, torch; print(lockstep.__version__, lockstep._core.__file__, torch.__version__)'
  venv/bin/lockstep launch -n 2 train.py
  venv/bin/lockstep test -n 2"
