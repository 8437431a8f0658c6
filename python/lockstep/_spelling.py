# SPDX-License-Identifier: Apache-2.0
"""Remedies in messages of the C++ library, in Python's spelling.

The C++ library writes options and calls as a C++ program has them. Errors and log lines replace these texts where they
reach a Python program. python/tests/test_spelling.py reads all messages of the library, and fails for a remedy that
Python lacks.
"""
from __future__ import annotations

import re
from typing import Any

from . import _core

_RULES = "of torch.optim whose rule Lockstep has, such as AdamW, Adam or SGD"

# C++ text, Python text. Of several that begin at one place the longest is used.
SPELLING: dict[str, str] = {
    # --- the Accelerator
    "set AcceleratorOptions::project_dir and project_name": "pass project_dir to the Accelerator",
    "AcceleratorOptions::project_dir": "project_dir of the Accelerator",
    "AcceleratorOptions::non_finite = NonFinitePolicy::kStop ends the run at that step, kSkip skips its update": (
        "Accelerator(non_finite='stop') ends the run at that step, 'skip' skips its update"
    ),
    "cannot be combined with a NonFinitePolicy": "cannot be combined with non_finite='skip' or 'stop'",
    "use NonFinitePolicy::kIgnore": "use non_finite='ignore'",
    "LoadStateOptions::schedulers = false, an engine's load_lr_scheduler_states = false": (
        "load_checkpoint(load_lr_scheduler_states=False) of an engine"
    ),
    "use another Accelerator(options, first.world(), first.group()) for each further model": (
        "use another Accelerator for each further model"
    ),
    "auto [model, optimizer] = accelerator.prepare(net, opt)": "model, optimizer = accelerator.prepare(net, opt)",
    "construct it with the same LoaderOptions on every rank": (
        "construct its DataLoader with the same arguments on every rank"
    ),
    "set the same seed on all (--seed, LoaderOptions::seed)": "call lockstep.utils.set_seed with one seed on all",
    "AcceleratorOptions::expect_prepared_loader = false": "expect_prepared_loader=False of the Accelerator",
    "construct it with the same LoaderOptions on every rank": "construct it with the same arguments on every rank",
    "AcceleratorOptions::expect_equal_passes = false": "expect_equal_passes=False of the Accelerator",
    "outside of NoGradGuard": "outside of torch.no_grad()",
    "only where sync_gradients() is true": "only where accelerator.sync_gradients is True",
    "call resume_latest() instead if a checkpoint exists": "remove this load_state(), or start without --resume",
    "call resume_latest() to start from the beginning if there is none": "call load_state() only if there is one",
    "use for (epoch : accelerator.epochs(n)), which continues at the saved epoch": (
        "call load_state() before the loop, and begin the loop at loader.iteration"
    ),
    " (lockstep::cpu_has_bf16() reports whether a CPU has them)": "",
    "LocalOptimizerState::kAverage": "average_optimizer_state=True",
    "use LocalOptimizerState::kKeep": "leave it False",
    "call its finish() after the loop": "leave its `with` block after the loop",
    "call its finish() first": "leave its `with` block first",
    "LocalSgd ended without finish(): every process keeps its own parameters; call finish() after the loop": (
        "LocalSGD ended by an exception: every process keeps its own parameters; load a checkpoint to go on"
    ),
    "LocalSgd": "LocalSGD",
    "set it to false": "set it to False",
    # --- optimizers
    "an optimizer of torch::optim": "an optimizer of torch.optim",
    "expected one of lockstep::optim's, torch::optim's SGD, Adam, AdamW, Adagrad or RMSprop, or your own class": (
        f"expected one {_RULES}, or your own class"
    ),
    "one of lockstep::optim or torch::optim's SGD, Adam, AdamW, Adagrad or RMSprop": f"one {_RULES}",
    " (see checkpointable.h) and pass it to prepare() with its own type": " and pass it to prepare()",
    "an optimizer of lockstep::optim": f"an optimizer {_RULES}",
    "optimizers of lockstep::optim": f"optimizers {_RULES}",
    "one of lockstep::optim": f"one {_RULES}",
    "use lockstep::optim's": "use those",
    "torch::optim::LBFGS": "torch.optim.LBFGS",
    "set_data, Module::to": "p.data = ..., model.to()",
    "with use_muon = false, as optim::muon_groups does": "with use_muon=False",
    "with set_lr() or a schedule": "with a schedule",
    "construct the optimizer with .capturable = true": "construct the optimizer with capturable=True",
    "set capturable = false": "set capturable=False",
    "share() cannot be combined with update_shards()": "shared_parameters cannot be combined with ZeRO",
    # --- the mesh
    "and give layers that fuse several TensorRule::fused": "and give layers that fuse several a tuple of style and sizes",
    "construct it with the group accelerator.mesh().experts, and launch with": (
        "construct its layers with ep_size of that number, and launch with"
    ),
    "AcceleratorOptions::tensor_parallel.plan": "a plan of tp_handler or of the model's tp_plan",
    ", or set AcceleratorOptions::mesh": ", or pass ParallelismConfig(ep_size=)",
    "construct the mixture with the group accelerator.mesh().experts": "construct the layer with the job's ep_size",
    "MoEOptions::average_expert_gradients is false; expected true": "the layer does not average its experts; expected it to",
    "expected one of lockstep::optim or torch::optim": f"expected one {_RULES}",
    "set MoEOptions::grouped_mm to false": "use experts of an own class",
    "pass parts of SequenceShard::shard_sequence. If keys and values are not sharded, as in cross attention to an encoder's "
    "full output, run this attention within a LocalAttentionScope, without is_causal": (
        "pass the tensors of the full sequence in `buffers`; a model with cross attention needs cp_size and sp_size of 1"
    ),
    "the forward within a ContextParallelScope has called": "the forward within maybe_context_parallel has called",
    "torch::scaled_dot_product_attention, ring_attention or ulysses_attention": "scaled_dot_product_attention",
    "torch::scaled_dot_product_attention": "scaled_dot_product_attention",
    "; if it is no attention, run it within a LocalAttentionScope": "; if it is no attention, compute it after the block",
    ", or run it within a LocalAttentionScope if it is not over the sequence": (
        ", or compute it after the block if it is not over the sequence"
    ),
    "or use AttentionMethod::kUlysses": "or use sp_size instead of cp_size",
    "or AttentionMethod::kRing, which divides no heads": "or cp_size instead of sp_size, which divides no heads",
    "or pass positions() to the model and set arange_gives_positions to false": "or another length of the sequence",
    "divide it by shard().shard_sequence, which is differentiable": "pass tensors without one",
    "outside of a SequenceScope, so": "outside of maybe_context_parallel, so",
    "SequenceScope scope(accelerator.mesh(), {{tokens, 1}, {labels, 1}})": (
        "with accelerator.maybe_context_parallel([tokens, labels], [1, 1])"
    ),
    # --- gradients
    "requires_grad_(false)": "requires_grad_(False)",
    "error_if_nonfinite = false": "error_if_nonfinite=False",
    "within no_sync() (set_sync(false))": "within no_sync()",
    "end the program after such an exception, or call abandon_backward()": "end the program after such an exception",
    "sparse=false": "sparse=False",
    # --- ZeRO
    "Accelerator::with_gathered_parameters(parameters, body, modifier_rank)": (
        "lockstep.utils.GatheredParameters(parameters, modifier_rank)"
    ),
    "Accelerator::with_gathered_parameters": "lockstep.utils.GatheredParameters",
    "end with_gathered_parameters before": "leave GatheredParameters before",
    "the program builds the model in Accelerator::zero_init": "the program builds the model in deepspeed.zero.Init",
    "(ZeRO stage 3, zero_init)": "(ZeRO stage 3, zero.Init)",
    "was created sharded (zero_init)": "was created sharded (zero.Init)",
    "the program opens an ActivationCheckpointing::Scope with cpu_checkpointing": (
        "the program calls torch.autograd.graph.save_on_cpu"
    ),
    "the program calls activation_checkpoint(module, x)": "the program calls torch.utils.checkpoint.checkpoint",
    "auto_wrap_policy kTransformer": "auto_wrap_policy transformer_based_wrap",
    "at::kHalf": "torch.float16",
    "at::kBFloat16": "torch.bfloat16",
    "try kHalf or kBFloat16": "try torch.float16 or torch.bfloat16",
    "fp32_masters=false": "fp32_masters=False",
    "remove kOptimStates from `include`": "remove optim_states from `include`",
    "got device kNvme, expected kCpu": "got device nvme, expected cpu",
    "device is kNone": "device is none",
    # --- engines
    "load it with Accelerator::load_state": "load it with Accelerator.load_state",
    "or save float32 with accelerator().save_model": "or save float32 by torch.save(engine.module_state_dict(), file)",
    "with load_optimizer_states = false": "with load_optimizer_states=False",
    "pass schedule::reduce_on_plateau to initialize as lr_scheduler, and the metric to step()": (
        "pass torch.optim.lr_scheduler.ReduceLROnPlateau to initialize as lr_scheduler, and the metric to "
        "step(lr_kwargs={'metrics': loss})"
    ),
    "give the program schedule::custom instead": "pass a scheduler of torch.optim.lr_scheduler to initialize instead",
    "the program gives mup_shapes, see optim::set_base_shapes": "only C++ programs have them",
    "call optim::set_base_shapes(*net, *base, *delta) before initialize, and pass its result as mup_shapes": (
        "which only C++ programs can give; use Adam, AdamW or SGD"
    ),
    # --- data
    "or drop_last = false": "or drop_last=False",
    "or split_batches = false": "or split_batches=False",
}

_CPP = re.compile("|".join(re.escape(text) for text in sorted(SPELLING, key=len, reverse=True)))


def in_python(message: str) -> str:
    """Returns a message with calls and options as Python programs write them."""
    return _CPP.sub(lambda found: SPELLING[found[0]], message)


def install() -> None:
    """Makes all errors of the package, also those of the C++ library, and its log lines have Python's spelling."""

    def construct(self: _core.Error, *args: Any) -> None:
        RuntimeError.__init__(self, *(in_python(arg) if isinstance(arg, str) else arg for arg in args))

    setattr(_core.Error, "__init__", construct)  # ConfigError and the others inherit it.
    _core.set_log_spelling(sorted(SPELLING.items(), key=lambda pair: len(pair[0]), reverse=True))
