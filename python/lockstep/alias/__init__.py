# SPDX-License-Identifier: Apache-2.0
"""Importing this module makes `import accelerate` and `import deepspeed` mean Lockstep, in this process and its forks.

Import it before all modules that import Accelerate or DeepSpeed, such as transformers. The real packages need not be
installed, and are not used if they are. `python -m lockstep.alias SCRIPT` and `lockstep launch --alias` do the same
without a change of the program, and also for Python processes that the program starts: docs/alias.md.
"""

from __future__ import annotations

from ._finder import install

__all__: list[str] = []

install()
