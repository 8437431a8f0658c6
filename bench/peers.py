# SPDX-License-Identifier: Apache-2.0
"""Creates the Python environment of the benches' peers, build/bench-peers, if it is missing."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build/bench-peers"
PEERS = ("torch", "accelerate", "safetensors", "deepspeed")
# The torch of the build, which the Python package needs.
TORCH = re.search(r"^readonly torch_version=(\S+)$", (ROOT / "scripts/lib.sh").read_text(encoding="utf-8"), re.M)[1]
PACKAGES = (f"torch=={TORCH}", *PEERS[1:], "matplotlib")


def own_python():
    """Returns the Python of the environment. Installs the peers from LOCKSTEP_PIP_INDEX_URL or the package index."""
    python, complete = VENV / "bin/python", VENV / "complete"
    wanted = " ".join(PACKAGES)
    if complete.is_file() and complete.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {', '.join(PACKAGES)} into {VENV}", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet"]
    index = os.environ.get("LOCKSTEP_PIP_INDEX_URL")
    # An index of torch may lack the other packages, so the package index is the second choice.
    commands = [[*pip, "--index-url", index, *PACKAGES]] if index else []
    commands.append([*pip, *PACKAGES])
    if not any(subprocess.run(each, stdout=sys.stderr, check=False).returncode == 0 for each in commands):
        sys.exit("bench: pip could not install the peers; try --peers-python, or LOCKSTEP_PIP_INDEX_URL")
    complete.write_text(wanted, encoding="utf-8")
    return python


def versions(python):
    """Returns {package: version} of the installed peers."""
    text = (
        "import importlib.metadata as m, json, sys\n"
        "installed = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({name: installed[name] for name in sys.argv[1:] if name in installed}))"
    )
    done = subprocess.run([str(python), "-c", text, *PEERS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
