# SPDX-License-Identifier: Apache-2.0
"""The Python that the benches' peers run in: build/bench-peers, made when it is missing."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build/bench-peers"
PACKAGES = ("torch", "accelerate", "safetensors")


def own_python():
    """Installs from LOCKSTEP_PIP_INDEX_URL or the package index; ends the program if that fails."""
    python = VENV / "bin/python"
    if (VENV / "complete").is_file():
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
    (VENV / "complete").touch()
    return python


def versions(python):
    """{package: version} of the peers."""
    text = "import accelerate, safetensors, torch; print(torch.__version__, accelerate.__version__, safetensors.__version__)"
    told = subprocess.run([str(python), "-W", "ignore", "-c", text], capture_output=True, text=True, check=True)
    return dict(zip(PACKAGES, told.stdout.split()))
