# SPDX-License-Identifier: Apache-2.0
"""Puts Lockstep's packages accelerate and deepspeed before all others. lockstep_alias.pth imports this at Python's start."""

import os
import sys

for _folder in sys.path:
    _packages = os.path.join(_folder, "lockstep", "alias", "packages")
    if os.path.isdir(_packages):
        sys.path.insert(0, _packages)
        break
