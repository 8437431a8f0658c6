# SPDX-License-Identifier: Apache-2.0
"""`python -m lockstep.alias SCRIPT ARGS...` runs a program in which accelerate and deepspeed mean Lockstep."""

from . import _run

if __name__ == "__main__":
    _run.main()
