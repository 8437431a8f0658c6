# SPDX-License-Identifier: Apache-2.0
"""Seed 000: sync_gradients with a progress bar and logs, and checkpoints of which the newest few are kept."""

import json
import os
import shutil
from argparse import Namespace

import torch
import torch.nn.functional as F
from common import FOLDER, make_net, numbers, report, weights_of
from tqdm.auto import tqdm

from lockstep import Accelerator
from lockstep.logging import get_logger
from lockstep.utils import ProjectConfiguration

logger = get_logger(__name__, log_level="INFO")
args = Namespace(
    output_dir=str(FOLDER), checkpointing_steps=3, checkpoints_total_limit=2, max_train_steps=16, train_batch_size=8
)
accelerator = Accelerator(
    gradient_accumulation_steps=2,
    log_with="jsonl",
    project_config=ProjectConfiguration(project_dir=args.output_dir, logging_dir=os.path.join(args.output_dir, "logs")),
)
model = make_net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
dataloader = torch.utils.data.DataLoader(numbers(), batch_size=args.train_batch_size, shuffle=True)
model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
accelerator.init_trackers("seed", {"lr": 1e-2})

progress_bar = tqdm(range(args.max_train_steps), disable=not accelerator.is_local_main_process)
global_step = 0
train_loss = 0.0
losses, most_checkpoints = [], 0
while global_step < args.max_train_steps:
    for source, targets in dataloader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(source), targets)
            # Gather the losses across all processes for logging (if we use distributed training).
            avg_loss = accelerator.gather(loss.repeat(args.train_batch_size)).mean()
            train_loss += avg_loss.item() / accelerator.gradient_accumulation_steps
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

        # Checks if the accelerator has performed an optimization step behind the scenes
        if accelerator.sync_gradients:
            progress_bar.update(1)
            global_step += 1
            accelerator.log({"train_loss": train_loss}, step=global_step)
            losses.append(train_loss)
            train_loss = 0.0

            if global_step % args.checkpointing_steps == 0:
                if accelerator.is_main_process:
                    # _before_ saving state, check if this save would set us over the `checkpoints_total_limit`
                    if args.checkpoints_total_limit is not None:
                        checkpoints = os.listdir(args.output_dir)
                        checkpoints = [d for d in checkpoints if d.startswith("checkpoint")]
                        checkpoints = sorted(checkpoints, key=lambda x: int(x.split("-")[1]))

                        # before we save the new checkpoint, we need to have at _most_ `checkpoints_total_limit - 1` checkpoints
                        if len(checkpoints) >= args.checkpoints_total_limit:
                            num_to_remove = len(checkpoints) - args.checkpoints_total_limit + 1
                            removing_checkpoints = checkpoints[0:num_to_remove]

                            logger.info(
                                f"{len(checkpoints)} checkpoints already exist, removing {len(removing_checkpoints)} checkpoints"
                            )
                            logger.info(f"removing checkpoints: {', '.join(removing_checkpoints)}")

                            for removing_checkpoint in removing_checkpoints:
                                removing_checkpoint = os.path.join(args.output_dir, removing_checkpoint)
                                shutil.rmtree(removing_checkpoint)
                # Diffusers saves on the main process only; save_state is for all processes.
                save_path = os.path.join(args.output_dir, f"checkpoint-{global_step}")
                accelerator.save_state(save_path)
                logger.info(f"Saved state to {save_path}")
                present = [d for d in os.listdir(args.output_dir) if d.startswith("checkpoint")]
                most_checkpoints = max(most_checkpoints, len(present))
            if global_step == args.max_train_steps:
                break
shown = None if progress_bar.disable else progress_bar.n
progress_bar.close()
accelerator.end_training()

report(
    accelerator.process_index,
    losses=losses,
    global_step=global_step,
    shown=shown,
    most_checkpoints=most_checkpoints,
    checkpoints=sorted(d for d in os.listdir(args.output_dir) if d.startswith("checkpoint")),
    logged=[
        json.loads(line)
        for path in FOLDER.glob("logs/**/*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ],
    weights=weights_of(model),
)
