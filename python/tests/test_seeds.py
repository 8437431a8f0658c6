# SPDX-License-Identifier: Apache-2.0
"""The training snippets of seeds/, which are written for Accelerate and DeepSpeed, run and give the right results.

Each seed runs with one process, and with two that `lockstep launch` starts, on the CPU. It writes one JSON file for
each process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import binary, python_path, run_alone

SEEDS = Path(__file__).resolve().parent / "seeds"
PROCESSES = (1, 2)

both = pytest.mark.parametrize("processes", PROCESSES)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "LOCKSTEP_USE_CPU": "true"}


def run_seed(name: str, folder: Path, processes: int, *arguments: str, launched: bool = True) -> list[dict[str, Any]]:
    """Returns the result of each process. `launched` False: the seed starts its own processes."""
    seed = SEEDS / f"{name}.py"
    if launched and processes == 1:
        text = run_alone(seed, str(folder), *arguments)
    else:
        launch = [str(binary()), "launch", "-n", str(processes)] if launched else []
        done = subprocess.run(
            [*launch, sys.executable, str(seed), str(folder), *arguments],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        text = done.stdout
    results = [
        json.loads((folder / f"result.{rank}.json").read_text(encoding="utf-8")) for rank in range(processes)
    ]
    for result in results:
        result["output"] = text
    return results


def all_equal(results: list[dict[str, Any]], key: str) -> bool:
    return all(result[key] == results[0][key] for result in results)


def fell(losses: list[float], to: float) -> bool:
    """Returns whether the median loss of the last tenth is below `to` times that of the first tenth."""
    count = max(1, len(losses) // 10)
    return statistics.median(losses[-count:]) < to * statistics.median(losses[:count])


@both
def test_quick_tour(processes: int, tmp_path: Path) -> None:
    results = run_seed("quick_tour", tmp_path, processes)
    for result in results:
        # 128 samples in batches of 8, divided between the processes; 10 epochs.
        assert result["length"] == 16 // processes and result["batches"] == 10 * 16 // processes
        assert fell(result["losses"], to=0.2)
    assert all_equal(results, "weights")
    assert processes == 1 or results[0]["losses"] != results[1]["losses"], "the processes have different batches"


@both
def test_evaluation_counts_each_sample_once(processes: int, tmp_path: Path) -> None:
    results = run_seed("evaluation", tmp_path, processes)
    for result in results:
        assert result["for_metrics_targets"] == result["expected_targets"]
        assert result["with_gather_targets"] == result["expected_targets"]
        assert result["for_metrics"] == result["with_gather"] == results[0]["alone"]
        # 101 samples, 8 for each process: gather also has those that complete the last batch.
        assert result["gathered"] == (101 if processes == 1 else 112)
    padded = [[0.0] * 3] * 2 if processes == 1 else [[0.0] * 3] * 2 + [[-1.0] * 3] + [[1.0] * 3] * 3
    assert results[0]["padded"] == padded
    assert all_equal(results, "for_metrics") and [result["alone"] is None for result in results[1:]] == [True] * (
        processes - 1
    )


@pytest.mark.parametrize(("processes", "precision"), [(1, "no"), (2, "no"), (2, "bf16"), (2, "fp16")])
def test_animal_classifier_by_notebook_launcher(processes: int, precision: str, tmp_path: Path) -> None:
    results = run_seed("training_loop", tmp_path, processes, precision, str(processes), launched=False)
    check_animals(results, processes, precision)
    assert results[0]["output"].count("epoch 4: ") == 1


def check_animals(results: list[dict[str, Any]], processes: int, precision: str) -> None:
    for result in results:
        assert result["processes"] == processes and result["precision"] == precision and result["frozen"]
        # 203 samples in batches of 128: two processes repeat samples up to 2 * 128.
        assert result["counts"] == [203 if processes == 1 else 256] * 5
        assert result["metrics"][-1] > 0.5 and (result["loss_scale"] is not None) == (precision == "fp16")
        assert result["rate"] == pytest.approx(last_rate_of_one_cycle(steps=5 * 640 // 64))
    assert all_equal(results, "weights") and all_equal(results, "metrics")


def last_rate_of_one_cycle(steps: int) -> float:
    """Two processes have half as many updates, and each of them advances the schedule by two."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-2 / 25)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-2, epochs=1, steps_per_epoch=steps)
    for _ in range(steps):
        optimizer.step()
        schedule.step()
    return schedule.get_last_lr()[0]


def test_animal_classifier_in_a_notebook(tmp_path: Path) -> None:
    from notebooks import run_notebook  # Skips the test without Jupyter.

    cells = [
        f"import sys; sys.path.insert(0, {str(SEEDS)!r}); sys.argv = ['notebook', {str(tmp_path)!r}]",
        "from training_loop import training_loop",
        # The seed's cell, with a free port.
        "from lockstep import notebook_launcher\n\n"
        'args = ("fp16", 42, 64)\n'
        "notebook_launcher(training_loop, args, num_processes=2, use_port=0)",
    ]
    ran = run_notebook(cells, environment(), seconds=180)
    text = "".join(output.get("text", "") for output in ran[-1].outputs)
    assert "Launching training on 2 CPUs." in text and text.count("epoch 4: ") == 1
    results = [json.loads((tmp_path / f"result.{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    check_animals(results, 2, "fp16")


@both
def test_one_process(processes: int, tmp_path: Path) -> None:
    results = run_seed("one_process", tmp_path, processes)
    main = ["any shapes", "main", "local main", "download", "unpack"]
    if processes == 1:
        assert results[0]["ran"] == [*main, "upload", "finish"]
    else:
        assert [result["ran"] for result in results] == [main, ["any shapes", "upload", "finish"]]
        assert results[1]["seen"] == "0", "main_process_first: process 1 comes after process 0"
    assert results[0]["seen"] == "" and [result["seen_again"] for result in results] == [False, True][:processes]
    assert [result["shown"] for result in results] == [True, False][:processes]
    assert all(result["data"] == "downloaded once" for result in results)
    assert results[0]["output"].count("printed once") == 1


@both
def test_wait_for_everyone(processes: int, tmp_path: Path) -> None:
    results = run_seed("wait_for_everyone", tmp_path, processes)
    # The main process sleeps 2 s after it has begun; the others may begin a little later.
    assert all(result["seconds"] > 1.0 for result in results)
    assert results[0]["output"].count("Everyone is here") == processes
    assert results[0]["output"].count("I'm waiting for the main process") == processes - 1


@both
def test_saved_models(processes: int, tmp_path: Path) -> None:
    results = run_seed("save_model", tmp_path, processes)
    for result in results:
        assert result["name"] == result["unwrapped_name"] == "Net"
        assert result["from_bin"] == result["saved"] and set(map(tuple, result["loaded"].values())) == {
            tuple(result["saved"])
        }
        assert result["array"] == [0, 1, 2, 3]
        assert result["files"]["whole"] == ["model.safetensors", "pytorch_model.bin"]
        assert result["files"]["gigabyte"] == ["model.safetensors"]
        assert result["files"]["my_model_directory"] == ["weights.bin"]
        shards = [name for name in result["files"]["shards"] if name.endswith(".safetensors")]
        assert len(shards) > 1 and "model.safetensors.index.json" in result["files"]["shards"]
    assert all_equal(results, "saved"), "prepare gives all processes the weights of the main process"
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert set(index["weight_map"].values()) == {
        name for name in results[0]["files"]["shards"] if name.endswith(".safetensors")
    }
    assert index["metadata"]["total_size"] == 4 * (16 * 32 + 32 + 32 * 4 + 4)


@both
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers_model(processes: int, tmp_path: Path) -> None:
    results = run_seed("transformers_model", tmp_path, processes)
    for result in results:
        assert fell(result["losses"], to=0.9)
        assert result["loaded"] == result["trained"] == results[0]["trained"]


@both
def test_saved_state(processes: int, tmp_path: Path) -> None:
    results = run_seed("save_state", tmp_path, processes)
    for result in results:
        assert result["after"] == result["before"]
        assert len(result["rest"]) == 24 // processes - 5
        assert result["rest_again"] == result["rest"], "the same samples, losses and rates after load_state"
        assert result["following_again"] == result["following"], "and in the next epoch"
        assert result["best"] == 3 and result["history"] == [0, 1, 2]
        numbers = [int(name.split("_")[1]) for name in result["checkpoints"] if name.startswith("checkpoint_")]
        assert numbers == [2, 3], "of four checkpoints, from checkpoint_0 on, the newest two are kept"
    assert all_equal(results, "before")


@both
def test_saved_state_in_a_folder(processes: int, tmp_path: Path) -> None:
    results = run_seed("save_state_folder", tmp_path, processes)
    for result in results:
        assert result["loaded"] == result["saved"] != result["changed"]
        assert result["changed_again"] == result["changed"], "the momentum is loaded, too"
        assert result["loaded_rate"] == result["rate"]
        assert any(name.endswith(".safetensors") for name in result["files"])


@pytest.mark.parametrize(("processes", "precision"), [(1, "no"), (2, "no"), (1, "bf16"), (2, "bf16"), (2, "fp16")])
def test_mixed_precision_and_clipping(processes: int, precision: str, tmp_path: Path) -> None:
    results = run_seed("mixed_precision", tmp_path, processes, precision)
    computed = {"no": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision]
    for result in results:
        assert fell(result["losses"], to=0.7)
        assert result["dtypes"] == [["torch.float32", computed]] and result["weight_dtype"] == "torch.float32"
        assert len(result["norms"]) == 4 * 8 // processes, "a norm for each update"
        finite = [norm for norm in result["norms"] if norm == norm and norm != float("inf")]
        assert max(finite) > 0.5 and len(finite) + result["skipped"] >= len(result["norms"])
        assert max(norm for norm in result["clipped"] if norm == norm) <= 0.5 + 1e-3
        assert max(value for value in result["values"] if value == value) <= 0.01 + 1e-6
        assert result["skipped"] == 0 or precision == "fp16"
    assert all_equal(results, "weights") and all_equal(results, "norms")


@both
def test_gradient_accumulation(processes: int, tmp_path: Path) -> None:
    results = run_seed("gradient_accumulation", tmp_path, processes)
    for result in results:
        micro_steps = 16 // processes
        assert result["synced"] == [False, True] * (3 * micro_steps // 2)
        assert result["losses"][:micro_steps] == pytest.approx(result["by_hand"], rel=1e-5)
        hand, own = ([float.fromhex(text) for text in result[key]] for key in ("by_hand_weights", "weights"))
        assert own == pytest.approx(hand, rel=1e-5, abs=1e-5)
        assert fell(result["losses"], to=0.7)
        # Each of the updates advances the schedule by one for each process; the rate falls every 8.
        steps = [(index + 1) // 2 * processes for index in range(3 * micro_steps)]
        assert result["rates"] == pytest.approx([0.1 * 0.9 ** (step // 8) for step in steps])
        assert result["by_hand_rate"] == pytest.approx(0.1 * 0.9 ** (micro_steps // 2 * processes // 8))
    assert all_equal(results, "weights")


@both
def test_sync_gradients_and_checkpoints_of_a_limited_number(processes: int, tmp_path: Path) -> None:
    results = run_seed("sync_gradients", tmp_path, processes)
    for result in results:
        assert result["global_step"] == 16 and len(result["losses"]) == 16
        assert fell(result["losses"], to=0.7)
        assert result["checkpoints"] == ["checkpoint-12", "checkpoint-15"] and result["most_checkpoints"] == 2
    assert [result["shown"] for result in results] == [16, None][:processes]
    assert all_equal(results, "weights") and all_equal(results, "losses")
    logged = [line["train_loss"] for line in results[0]["logged"] if "train_loss" in line]
    assert logged == pytest.approx(results[0]["losses"])


@both
def test_no_sync_step(processes: int, tmp_path: Path) -> None:
    results = run_seed("no_sync_step", tmp_path, processes)
    for result in results:
        steps = result["results"]
        assert len(steps) == 4 * 16 // processes and result["n_steps"] == 64 and result["accumulation"] == 2
        clipped = [step for step in steps if "grad_norm_post_clip" in step]
        assert len(clipped) == len(steps) // 2
        assert all(step["grad_norm_post_clip"] <= 0.5 + 1e-4 for step in clipped)
        assert max(step["grad_norm_pre_clip"] for step in clipped) > 0.5
        assert fell([step["loss"] for step in steps], to=0.5)
        # Warm-up over 4 batches, then down to 0 after all 64 batches of all processes.
        assert [step["lr"] for step in steps] == pytest.approx(
            [0.5 * min(1.0, n / 4) * (1 - n / 64) for n in ((i + 1) * processes for i in range(len(steps)))]
        )
    for ours, others in zip(results[0]["results"], results[-1]["results"]):
        assert ours["weight_norm"] == others["weight_norm"] and ours.get("grad_norm_pre_clip") == others.get(
            "grad_norm_pre_clip"
        )
    assert all_equal(results, "weights")


@both
def test_local_sgd(processes: int, tmp_path: Path) -> None:
    results = run_seed("local_sgd", tmp_path, processes)
    for result in results:
        assert len(result["losses"]) == 2 * 40 // processes and fell(result["losses"], to=0.5)
    assert all_equal(results, "last"), "the end of the block averages the weights"
    if processes == 2:
        pairs = list(zip(results[0]["weights"], results[1]["weights"]))
        equal = [index for index, (mine, other) in enumerate(pairs) if mine == other]
        # An average after every 8 updates, which are 16 micro-steps; the first micro-step has no update yet.
        assert equal == [0, 15, 16, 31, 32]


def test_write_config(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SEEDS / "write_config.py")],
        env=environment() | {"XDG_CONFIG_HOME": str(tmp_path), "HF_HOME": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()], "a configuration is written"


@pytest.mark.parametrize(("processes", "precision"), [(1, "no"), (2, "no"), (2, "fp16")])
def test_deepspeed_loop_and_checkpoint(processes: int, precision: str, tmp_path: Path) -> None:
    results = run_seed("deepspeed_loop", tmp_path, processes, *(["--fp16"] if precision == "fp16" else []))
    for result in results:
        assert len(result["losses"]) == 40 and fell(result["losses"], to=0.5)
        # Steps 10, 20 and 30 are saved; the new engine repeats 31 to 39.
        assert result["resumed_at"] == 30 and result["last_step"] == 39
        assert result["losses_again"] == result["losses"][31:] and result["last_again"] == result["last"]
        assert result["global_steps"] == 40
    assert all_equal(results, "last")
