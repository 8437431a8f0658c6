# SPDX-License-Identifier: Apache-2.0
"""A progress bar on one process of each host."""

from __future__ import annotations

from typing import Any

from .._core import ConfigError
from ..state import PartialState

__all__ = ["tqdm"]


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """Returns tqdm.auto.tqdm(...), which shows nothing on other than the first process of a host.

    `main_process_only=False` shows a bar on every process. Throws ImportError without the package tqdm.
    """
    try:
        from tqdm.auto import tqdm as bar
    except ImportError as error:
        raise ImportError("lockstep.utils.tqdm needs the package tqdm; run `pip install tqdm`") from error
    if args and isinstance(args[0], bool):
        raise ConfigError(f"[tqdm] the first argument is {args[0]}; expected an iterable; pass main_process_only=")
    disable = kwargs.pop("disable", False)
    if main_process_only and not disable:
        disable = not PartialState().is_local_main_process
    return bar(*args, disable=disable, **kwargs)
