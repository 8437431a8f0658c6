# SPDX-License-Identifier: Apache-2.0
"""Accelerate's names: each one exists, or says why it does not."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from lockstep import utils
from lockstep.utils._absent import ABSENT

NAMES = Path(__file__).with_name("golden").joinpath("accelerate_utils.txt").read_text(encoding="utf-8").split()


def test_each_name_of_accelerates_utils_exists_or_has_a_reason():
    assert [name for name in NAMES if name not in vars(utils) and name not in ABSENT] == []
    assert [name for name in ABSENT if name in vars(utils) or name not in NAMES] == []


def test_an_absent_name_is_an_import_error_with_its_reason():
    with pytest.raises(ImportError, match="merge_fsdp_weights: run `lockstep merge-weights"):
        from lockstep.utils import merge_fsdp_weights  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'unheard_of'"):
        from lockstep.utils import unheard_of  # noqa: F401
    with pytest.raises(ImportError, match="no AimTracker; derive a class"):
        from lockstep.tracking import AimTracker  # noqa: F401


@pytest.mark.parametrize(
    "module",
    ["big_modeling", "inference", "launchers", "logging", "parallelism_config", "test_utils", "tracking", "utils"]
    + [
        f"utils.{name}" for name in ("dataclasses", "deepspeed", "imports", "memory", "modeling", "operations", "other")
    ],
)
def test_all_names_of_a_modules_list_exist(module):
    loaded = importlib.import_module(f"lockstep.{module}")
    assert loaded.__all__ and [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


def test_functions_that_report_what_is_available_return_a_bool():
    found = {
        name: getattr(utils, name)() for name in vars(utils) if name.startswith("is_") and name.endswith("available")
    }
    assert len(found) > 50 and [name for name, value in found.items() if not isinstance(value, bool)] == []
    assert found["is_pytest_available"] and found["is_bf16_available"] and not found["is_fp8_available"]
