#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python wheel, installs it with pip in a new virtual environment, then builds and runs the project beside
# this script there, without any other path. Usage: wheel.sh CMAKE BUILD_FOLDER TORCH_DIR CXX VERSION PYTHON
#
# The packages of PYTHON's environment, such as torch, are links in the new one, which saves a download of 200 MB.
set -euo pipefail

# shellcheck source=tests/install/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readonly python=$6 prefix=$work/venv path=$PATH

wheel=$("$here/../../scripts/package" wheel "$build" "$work")
tag=$("$python" -c 'import sys; print("cp{0}{1}-cp{0}{1}".format(*sys.version_info))')
expect_equal "the file" "${wheel##*/}" "lockstep_train-$version-$tag-linux_$(uname -m).whl"

"$python" -m venv --without-pip "$prefix"
site=$(echo "$prefix"/lib/python3*/site-packages)
for folder in "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
  "$(dirname "${torch_dir%/share/cmake/Torch}")"; do
  find "$folder" -maxdepth 1 ! -path "$folder" ! -name '__pycache__' ! -name 'lockstep*' -exec ln -sfn -t "$site" {} +
done
# As in an activated environment.
PATH=$prefix/bin:$path
clean python -m pip --disable-pip-version-check install --no-index "$wheel"
series=$(sed -n 's/^set(lockstep_TORCH_SERIES "\(.*\)")/\1/p' "$(package_dir "$prefix")/lockstepConfig.cmake")
[[ -n $(find "$site/lockstep/torch-$series" -name '_core.*.so') ]] || fail "the wheel has no module for torch $series"
check_files "$prefix"
check_api "$prefix"
if readelf -d "$prefix/libexec/lockstep/lockstep_selftest" | grep -E '(RPATH|RUNPATH).*(\[|:)/'; then
  fail "lockstep_selftest contains a folder of the machine that built it"
fi
check_programs "$prefix"
expect_equal "the module" "$(clean python -c 'import lockstep as l; print(l.__version__, l.cmake_prefix_path)')" \
  "$version $prefix"
expect_equal "the requirements" \
  "$(clean python -c 'from importlib.metadata import requires; print(*requires("lockstep-train"))')" "torch==$series.* numpy safetensors"
grep -qF "## [$version]" "$here/../../CHANGELOG.md" || fail "CHANGELOG.md has no section of version $version"

# Two processes train in Python, from the command line that was installed.
cat >"$work/train.py" <<'PYTHON'
import torch
from lockstep import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
for _ in range(3):
    accelerator.backward(model(torch.ones(4, 2)).pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
print("trained", accelerator.num_processes, all(torch.isfinite(value).all() for value in model.parameters()))
PYTHON
clean lockstep launch -n 2 "$work/train.py" >"$work/train.log"
expect_equal "the training in Python" "$(grep -c 'trained 2 True' "$work/train.log")" 2
clean python -m lockstep test -n 2 >"$work/python_selftest.log"
grep -q "py.checkpoint" "$work/python_selftest.log" || fail "python -m lockstep test does not check the Python package"

# In an environment with the other wheel, accelerate and deepspeed mean Lockstep; pip cannot uninstall them.
alias_wheel=$("$here/../../scripts/alias_wheel" "$work")
cat >"$work/alias.py" <<'PYTHON'
import importlib.metadata, sys

assert "torch" not in sys.modules and importlib.metadata.version("accelerate") == "1.15.0"
import accelerate, deepspeed.ops.adam, lockstep.deepspeed
print(accelerate.Accelerator is lockstep.Accelerator and deepspeed is lockstep.deepspeed)
PYTHON
tail -n +4 "$work/alias.py" >"$work/alias_only.py"
clean python -m pip --disable-pip-version-check install --no-index "$alias_wheel"
expect_equal "the alias" "$(clean python "$work/alias.py")" True
clean python -m pip --disable-pip-version-check uninstall --yes accelerate >"$work/uninstall_accelerate.log" 2>&1
expect_equal "the alias after pip uninstall accelerate" "$(clean python "$work/alias.py")" True
clean python -m pip --disable-pip-version-check uninstall --yes lockstep-alias
if clean python "$work/alias.py" 2>/dev/null; then
  fail "accelerate means Lockstep although lockstep-alias is uninstalled"
fi
expect_equal "the alias of one program" "$(clean lockstep launch -q -n 1 --alias "$work/alias_only.py")" True

# The wheel contains the other libraries, so CMake need not find Debian's.
readonly arguments=(-DCMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON -DCMAKE_DISABLE_FIND_PACKAGE_yaml-cpp=ON
  -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
build_and_run "${arguments[@]}"
grep -q "^Torch_DIR:PATH=$site/torch/" "$work/outside/CMakeCache.txt" || fail "torch was not found in the environment"
if ninja -C "$work/outside" -t commands | grep -e '/usr/lib[^ ]*yaml' -e '/usr/lib[^ ]*libz'; then
  fail "the program links a library of this machine, which the wheel contains"
fi
if ninja -C "$work/outside" -t deps | grep /usr/include/nlohmann; then
  fail "the program includes a header of this machine, which the wheel contains"
fi

# Without the environment on the PATH the launcher takes its environment's Python, also through a link.
PATH=$path
ln -s "$prefix/bin/lockstep" "$work/lockstep"
for launcher in "$prefix/bin/lockstep" "$work/lockstep"; do
  clean "$launcher" launch -n 2 "$work/train.py" >"$work/train.log"
  expect_equal "the training by $launcher" "$(grep -c 'trained 2 True' "$work/train.log")" 2
done
configure -DCMAKE_PREFIX_PATH="$("$prefix/bin/python" -c 'import lockstep; print(lockstep.cmake_prefix_path)')" >/dev/null

# An environment without torch, and one with another torch.
PATH=$prefix/bin:$path
mv "$site/torch" "$work/torch"
expect_refused "[lockstep] torch is missing; expected torch $series; activate the Python environment" "${arguments[@]}"
mv "$work/torch" "$site/torch"
refuse_another_torch "$prefix" "${arguments[@]}"

clean python -m pip --disable-pip-version-check uninstall --yes lockstep-train >"$work/uninstall.log"
if find "$prefix" -path '*lockstep*' -type f | grep .; then
  fail "files are left after pip has uninstalled the package"
fi
echo "made, installed, found, built, ran, uninstalled; another torch and none are refused"
