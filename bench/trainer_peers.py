# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a small GPT-2 by transformers.Trainer, with whatever `accelerate` means in this process, for trainer.py."""
import argparse
import json
import tempfile
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class StepTimes(TrainerCallback):
    """Keeps the time of each update, from its first micro-batch to its end."""

    def __init__(self):
        self.seconds, self.began = [], 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds.append(time.perf_counter() - self.began)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=64, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=4, help="samples of a rank")
    return parser.parse_args()


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=1024,
            n_positions=options.length,
            n_embd=options.width,
            n_layer=options.layers,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    tokens = torch.randint(1024, (512, options.length))
    samples = [{"input_ids": row, "labels": row} for row in tokens]
    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=samples, callbacks=[times])
        result = trainer.train()
    if trainer.is_world_process_zero():
        kept = sorted(times.seconds[5:])
        print(json.dumps({"ms": 1e3 * kept[len(kept) // 2], "loss": round(result.training_loss, 4)}))


if __name__ == "__main__":
    main()
