# SPDX-License-Identifier: Apache-2.0
"""Creates the Python environment of the benches' peers, build/bench-peers, if it is missing."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build/bench-peers"
PEERS = ("torch", "accelerate", "safetensors", "deepspeed")
PACKAGES = (*PEERS, "matplotlib")


def own_python():
    """Installs from LOCKSTEP_PIP_INDEX_URL or the package index; ends the program if that fails."""
    python, complete = VENV / "bin/python", VENV / "complete"
    wanted = " ".join(PACKAGES)
    if complete.is_file() and complete.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {', '.join(PACKAGES)} into {VENV}", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet"]
    index = os.environ.get("LOCKSTEP_PIP_INDEX_URL")
    # An index of torch's may hold nothing else, hence the second way.
    ways = [[*pip, "--index-url", index, *PACKAGES]] if index else []
    ways.append([*pip, *PACKAGES])
    if not any(subprocess.run(way, stdout=sys.stderr, check=False).returncode == 0 for way in ways):
        sys.exit("bench: pip could not install the peers; try --peers-python, or LOCKSTEP_PIP_INDEX_URL")
    complete.write_text(wanted, encoding="utf-8")
    return python


def versions(python):
    """{package: version} of those peers that are there."""
    text = (
        "import importlib.metadata as m, json, sys\n"
        "there = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({name: there[name] for name in sys.argv[1:] if name in there}))"
    )
    told = subprocess.run([str(python), "-c", text, *PEERS], capture_output=True, text=True, check=True)
    return json.loads(told.stdout)
