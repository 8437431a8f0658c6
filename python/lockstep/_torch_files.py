# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save, read without running code of theirs."""
from __future__ import annotations

import os
import pickle
import re
from typing import Any

import torch

from ._core import CheckpointError

# The name that torch's reader refuses, in each form of its message.
_REFUSED = re.compile(
    r"GLOBAL (?P<name>\S+) (?:was not|whose module)|unrecognized function (?P<function>.+)|but got (?P<kind>.+)"
)
# This pattern finds the fault in torch's message, without torch's advice.
_DETAIL = re.compile(r"WeightsUnpickler error:\s*(?P<detail>[^\n]+)")


def load_torch_file(file: Any, where: str, map_location: Any, classes: list[Any], **options: Any) -> Any:
    """Returns the content of a file of torch.save that holds tensors, plain values and objects of `classes`.

    Throws CheckpointError for a file that refers to another class or function, since building such an object can run
    any code, and for one that is damaged. Throws OSError for one that cannot be read. `where` names the caller, `options` are torch.load's.
    """
    try:
        with torch.serialization.safe_globals(classes):
            return torch.load(file, map_location=map_location, weights_only=True, **options)
    except OSError:
        raise
    except pickle.UnpicklingError as error:
        raise _refusal(_name_of(file), where, str(error)) from None
    except Exception as error:  # torch's reader trusts the structure of a pickle.
        text = str(error).split(". ")[0]  # The rest is advice.
        raise _damage(_name_of(file), where, f"{type(error).__name__}: {text}" if text else type(error).__name__) from None


def _name_of(file: Any) -> str:
    if isinstance(file, (str, os.PathLike)):
        return os.fspath(file)
    return str(getattr(file, "name", "the file"))


def _refusal(file: str, where: str, reason: str) -> CheckpointError:
    refused = _REFUSED.search(reason)
    if refused is None:
        detail = _DETAIL.search(reason)
        return _damage(file, where, detail["detail"] if detail else "its pickle is invalid")
    name = next(found for found in refused.groups() if found).strip()
    return CheckpointError(
        f"[{where}] {file} refers to {name}, which is not loaded: a pickle that names a class or function could run code "
        "of its author; expected tensors, numbers, text and containers; no option permits more; open the file with the "
        "program that saved it, and save it without that object"
    )


def _damage(file: str, where: str, reason: str) -> CheckpointError:
    line = reason.strip().splitlines()[0]
    return CheckpointError(
        f"[{where}] {file} is damaged, or no file of torch.save: {line}; expected tensors and plain values; copy the file "
        "again, or use another checkpoint"
    )
