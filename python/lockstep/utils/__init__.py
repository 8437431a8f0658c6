# SPDX-License-Identifier: Apache-2.0
"""The functions and classes of accelerate.utils.

A name that Lockstep lacks is an ImportError that says why; `_absent.py` lists them.
"""

from __future__ import annotations

from typing import NoReturn

from . import (
    constants,
    dataclasses,
    deepspeed,
    environment,
    fsdp_utils,
    imports,
    memory,
    modeling,
    offload,
    operations,
    other,
    random,
)
from ._absent import ABSENT
from .constants import *  # noqa: F403
from .dataclasses import *  # noqa: F403
from .deepspeed import *  # noqa: F403
from .environment import *  # noqa: F403
from .fsdp_utils import *  # noqa: F403
from .imports import *  # noqa: F403
from .memory import *  # noqa: F403
from .modeling import *  # noqa: F403
from .offload import *  # noqa: F403
from .operations import *  # noqa: F403
from .other import *  # noqa: F403
from .random import *  # noqa: F403
from .tqdm import tqdm as tqdm
from .versions import compare_versions as compare_versions
from .versions import is_torch_version as is_torch_version

__all__ = sorted(
    {
        "compare_versions",
        "is_torch_version",
        "tqdm",
        *(
            name
            for module in (
                constants,
                dataclasses,
                deepspeed,
                environment,
                fsdp_utils,
                imports,
                memory,
                modeling,
                offload,
                operations,
                other,
                random,
            )
            for name in module.__all__
        ),
    }
)


def __getattr__(name: str) -> NoReturn:
    if name in ABSENT:
        raise ImportError(f"lockstep.utils has no {name}: {ABSENT[name]}")
    raise AttributeError(f"module 'lockstep.utils' has no attribute {name!r}")
