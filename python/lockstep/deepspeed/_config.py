# SPDX-License-Identifier: Apache-2.0
"""The forms in which a program gives its ds_config."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from .. import _core
from .._core import ConfigError
from ..parallelism_config import launched_size
from ..state import AcceleratorState

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}  # By the file's names.


class GivenConfig:
    """A ds_config as a program gave it: `path` of a file, or its `text`. One of them is empty.

    `sequence_ranks` ranks compute each sample together. train_batch_size counts such a sample once, as in DeepSpeed.
    """

    def __init__(self, path: str = "", text: str = "", sequence_ranks: int = 1) -> None:
        self.path = path
        self.text = text
        self.sequence_ranks = sequence_ranks

    def as_dict(self) -> dict[str, Any]:
        """Returns the file's content, before defaults and derived values."""
        return _core.ds_config_content(self.path, self.text)

    def values(self, ranks: int) -> dict[str, Any]:
        """Returns every value by its path, with defaults and batch sizes for `ranks`. Throws ConfigError."""
        return _core.ds_config_values(self.path, self.text, ranks // self.sequence_ranks)

    def for_each_rank(self, ranks: int) -> GivenConfig:
        """Returns the same for the C++ engine, which counts a sample once for each rank that computes it."""
        if self.sequence_ranks == 1:
            return self
        values = self.values(ranks)
        sizes = {key: values[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")}
        sizes["train_batch_size"] = values["train_batch_size"] * self.sequence_ranks
        content = self.without("data_parallel_size").as_dict()  # values() has compared it.
        return GivenConfig(text=json.dumps(content | sizes))

    def without(self, section: str) -> GivenConfig:
        """Returns the same without a top-level section."""
        content = self.as_dict()
        if section not in content:
            return self
        del content[section]
        return GivenConfig(text=json.dumps(content), sequence_ranks=self.sequence_ranks)

    def whole_number(self, path: str, least: int) -> int:
        """Returns a whole number of the file as the C++ library reads it. Throws ConfigError for another value.

        `least` is the least number, and also the default: of "auto", and of a file without the key.
        """
        value: Any = self.as_dict()
        for name in path.split("."):
            if isinstance(value, dict) and name not in value:
                return least
            value = value.get(name) if isinstance(value, dict) else None
        if value == "auto":
            return least
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and int(value) == value >= least:
            return int(value)
        self.values(int(os.environ.get("WORLD_SIZE", "1")))  # It throws, with the places of all errors of the file.
        raise ConfigError(f"[{path}] the value is {value!r}; expected a whole number, at least {least}")

    def with_sequence_ranks(self, sequence_ranks: int) -> GivenConfig:
        """Returns the same for `sequence_ranks`, without sequence_parallel_size, unless that is 1.

        Throws ConfigError if the file has another size.
        """
        if sequence_ranks == 1:
            return self
        same = GivenConfig(self.path, self.text, sequence_ranks)
        same.expect_sequence_ranks()
        return same.without("sequence_parallel_size")

    def expect_no_other_mesh(self) -> None:
        """Throws ConfigError if the launcher's mesh divides sequences, without an Accelerator that cuts the batches."""
        if AcceleratorState._shared_state.get("parallelism_config") is None:
            launched = (launched_size("sp_size") or 1) * (launched_size("cp_size") or 1)
            if launched not in (1, self.sequence_ranks):
                raise ConfigError(
                    f"[initialize] {launched} ranks of the launcher's mesh divide each sequence, and nothing cuts the "
                    "batches; create an Accelerator, which does, or launch without sp and cp"
                )

    def expect_sequence_ranks(self) -> None:
        """Throws ConfigError unless sequence_parallel_size of the file is `sequence_ranks`, or 1."""
        of_file = self.whole_number("sequence_parallel_size", 1)
        if of_file not in (1, self.sequence_ranks):
            raise ConfigError(
                f"[initialize] sequence_parallel_size is {of_file}, and {self.sequence_ranks} ranks divide each sequence; "
                "expected the same: pass the mpu of UlyssesSPAttentionHF.register_with_transformers(), or prepare the model "
                f"by an Accelerator with ParallelismConfig(sp_size={of_file})"
            )


def expect_equal(sizes: dict[str, int], where: str) -> int:
    """Returns the size of all sources that have one, which are not 0; 0 without. Throws ConfigError if they differ."""
    given = {name: size for name, size in sizes.items() if size}
    if len(set(given.values())) > 1:
        raise ConfigError(
            f"[{where}] {', '.join(f'{name} is {size}' for name, size in given.items())}; expected the same number of ranks"
        )
    return next(iter(given.values()), 0)


def is_sequence_mpu(mpu: Any) -> bool:
    """Returns whether the mpu is parallel_state_sp, whose ranks divide sequences."""
    return mpu is not None and mpu is import_module("lockstep.deepspeed.runtime.sequence_parallel.parallel_state_sp")


def sequence_ranks_of(mpu: Any, where: str) -> int:
    """Returns how many ranks compute a sample together: those that the mpu parallel_state_sp groups; without an mpu 1.

    Throws ConfigError for another mpu.
    """
    if mpu is None:
        return 1
    if not is_sequence_mpu(mpu):
        raise ConfigError(
            f"[{where}] got an mpu; expected none, that of UlyssesSPAttentionHF.register_with_transformers(), or one whose "
            "model parallel ranks are those of tensor_parallel.autotp_size; pass a deepspeed.pipe.PipelineModule to divide a "
            "list of layers"
        )
    return int(mpu.get_sequence_parallel_world_size())


def given_config(config: Any, args: Any = None, config_params: Any = None) -> GivenConfig:
    """Returns the one configuration of `config`, `config_params` and `args.deepspeed_config`."""
    if config is not None and config_params is not None:
        raise ConfigError("[initialize] got both config and config_params, its old name; pass config only")
    config = config_params if config is None else config
    of_args = getattr(args, "deepspeed_config", None)
    if of_args is not None and config is not None:
        raise ConfigError(f"[initialize] got config and also --deepspeed_config {of_args}; pass only one of them")
    config = of_args if config is None else config
    if config is None:
        for variable in ("LOCKSTEP_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_CONFIG_FILE"):
            if os.environ.get(variable):  # `lockstep launch --deepspeed-config-file FILE`.
                return GivenConfig(path=os.environ[variable])
        raise ConfigError(
            "[initialize] the configuration is missing; pass config, a dict or the path of a ds_config.json, or start "
            "the program with --deepspeed_config FILE"
        )
    if hasattr(config, "_given_config"):  # A DeepSpeedConfig.
        config = config._given_config
    if isinstance(config, GivenConfig):
        return config
    if isinstance(config, Mapping):
        return GivenConfig(text=_dumped(config))
    if not isinstance(config, (str, os.PathLike)):
        raise ConfigError(
            f"[initialize] config is a {type(config).__name__}; expected a dict, a path, or base64 text of a JSON file"
        )
    text = os.fspath(config)
    if not os.path.exists(text) and isinstance(config, str) and _core.is_ds_config_text(text):
        return GivenConfig(text=text)
    return GivenConfig(path=text)


def _dumped(config: Mapping[str, Any]) -> str:
    try:
        return json.dumps(config, default=dict)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"[initialize] config is not JSON: {error}; expected numbers, text, lists and dicts"
        ) from None
