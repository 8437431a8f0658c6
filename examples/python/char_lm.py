# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer to write like its text, character by character, on one process or many.

Examples:
  python char_lm.py --data my.txt --steps 200
  lockstep launch -n 2 char_lm.py --output runs/two
  lockstep launch -n 2 char_lm.py --output runs/two --steps 800 --resume
  lockstep launch -n 2 char_lm.py --zero 3 --output runs/sharded

It is examples/char_lm in Python: accumulation, bf16, a cosine schedule, clipping, evaluation and checkpoints.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from common import Progress, check_output, parser_of, positive, resume_if, whole
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from lockstep import Accelerator, ConfigError
from lockstep.utils import ProjectConfiguration, set_seed

# ./dev setup installs Shakespeare's works here.
SHAKESPEARE = Path(__file__).resolve().parents[2] / ".venv/shakespeare/shksprdata/texts"


class Text:
    """A text with one number for each of its different bytes."""

    def __init__(self, path: Path) -> None:
        files = [path] if path.is_file() else sorted(path.glob("*_gut.txt"))
        content = b"".join(file.read_bytes() for file in files)
        if not content:
            raise ConfigError(
                f"[--data] {path} is neither a text file nor a folder with *_gut.txt; run `./dev setup`, which "
                "installs Shakespeare's works, or give another text with --data FILE"
            )
        self.alphabet = sorted(set(content))
        self.numbers = {byte: number for number, byte in enumerate(self.alphabet)}
        self.tokens = self.encode(content)

    def encode(self, text: bytes) -> torch.Tensor:
        """Returns int64 (characters)."""
        unknown = set(text) - set(self.numbers)
        if unknown:
            raise ConfigError(f"[--prompt] the text has no character {bytes(unknown)!r}; choose another --prompt")
        return torch.tensor([self.numbers[byte] for byte in text])

    def decode(self, tokens: torch.Tensor) -> str:
        return bytes(self.alphabet[token] for token in tokens.tolist()).decode("utf-8", errors="replace")


class TextChunks(Dataset):
    """Chunks of `length` characters, which do not overlap. Targets are shifted by one character."""

    def __init__(self, tokens: torch.Tensor, length: int) -> None:
        self.tokens, self.length = tokens, length
        if len(self) < 1:
            raise ConfigError(f"[--data] a part of the text has {len(tokens)} characters; expected more than {length}")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        chunk = self.tokens[index * self.length : (index + 1) * self.length + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    """A transformer block: causal attention, then a two-layer MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        mixed = functional.scaled_dot_product_attention(
            *parts.permute(2, 0, 3, 1, 4), dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = x + self._drop(self.projection(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self._drop(self.down(functional.gelu(self.up(self.norm2(x)))))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.dropout, self.training)


class CharModel(nn.Module):
    """A decoder-only transformer over characters, modelled on GPT-2 (Radford et al., 2019)."""

    def __init__(self, vocabulary: int, context: int, layers: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.context, self.dropout = context, dropout
        self.characters, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # GPT-2 scales the last layer of each residual branch by 1 / sqrt(2 * layers).
                depth = math.sqrt(2 * layers) if "projection" in name or "down" in name else 1
                nn.init.normal_(parameter, 0.0, 0.02 / depth)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Maps characters (batch, time) to scores of the next character (batch, time, vocabulary)."""
        x = self.characters(text) + self.places(torch.arange(text.size(1), device=text.device))
        x = functional.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.characters.weight)  # Tied embedding.


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: CharModel, held_out: Any) -> float:
    """Returns the mean loss on the held-out text, the same on every process. Collective."""
    model.eval()
    losses = []
    for data, target in held_out:
        each = functional.cross_entropy(model(data).transpose(1, 2), target, reduction="none")
        losses.append(accelerator.gather_for_metrics(each.mean(1)))
    model.train()
    return torch.cat(losses).mean().item()


@torch.no_grad()
def generate(model: CharModel, text: Text, prompt: str, length: int, device: torch.device) -> str:
    """Returns `length` characters after `prompt`, sampled from the model's distribution."""
    model.eval()
    tokens = text.encode(prompt.encode()).to(device)[None]
    for _ in range(length):
        scores = model(tokens[:, -model.context :])[:, -1]
        tokens = torch.cat([tokens, torch.multinomial(torch.softmax(scores / 0.8, 1), 1)], 1)
    return text.decode(tokens[0].cpu())


def warmup_cosine(step: int, warmup: int, total: int, least: float = 0.1) -> float:
    """Returns the factor of the learning rate after `step` steps."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done))


def train(options: argparse.Namespace) -> None:
    accelerator = Accelerator(
        mixed_precision=options.precision,
        gradient_accumulation_steps=options.accumulate,
        log_with=["tensorboard", "jsonl"],
        project_config=ProjectConfiguration(
            str(options.output), logging_dir=str(options.output / "logs"), automatic_checkpoint_naming=True
        ),
        zero={"stage": options.zero} if options.zero else None,
        # This schedule counts updates; without it step() would advance once for each process.
        step_scheduler_with_optimizer=False,
    )
    check_output(options.output, options.resume)
    accelerator.wait_for_everyone()
    text = Text(options.data)
    cut = len(text.tokens) * 19 // 20

    # Dropout differs between processes; weights do not, since prepare() broadcasts those of process 0.
    set_seed(options.seed, device_specific=True)
    model = CharModel(
        len(text.alphabet), options.context, options.layers, options.heads, options.width, options.dropout
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup_cosine(step, options.warmup, options.steps)
    )
    train_loader = DataLoader(TextChunks(text.tokens[:cut], options.context), options.batch_size, shuffle=True)
    held_out = DataLoader(TextChunks(text.tokens[cut:], options.context), batch_size=32)
    model, optimizer, scheduler, train_loader, held_out = accelerator.prepare(
        model, optimizer, scheduler, train_loader, held_out
    )
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    resume_if(options.resume, accelerator, options.output)
    accelerator.init_trackers("char_lm", {"lr": options.lr, "batch_size": options.batch_size})

    began, before = time.monotonic(), progress.steps
    held_out_loss = math.nan
    while progress.steps < options.steps and train_loader.iteration < options.epochs:
        bar = tqdm(
            train_loader, desc=f"epoch {train_loader.iteration + 1}", disable=not accelerator.is_local_main_process
        )
        for data, target in bar:
            with accelerator.accumulate(model):
                with accelerator.autocast():
                    loss = functional.cross_entropy(model(data).flatten(0, 1), target.flatten())
                accelerator.backward(loss)
                norm = None
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), options.clip)
                optimizer.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                optimizer.zero_grad()
            if norm is None:
                continue
            progress.steps += 1
            if progress.steps % 20 == 0:
                mean = accelerator.reduce(loss.detach(), "mean").item()
                values = {"train/loss": mean, "train/gradient_norm": norm, "train/lr": scheduler.get_last_lr()[0]}
                accelerator.log(values, step=progress.steps)
                bar.set_postfix_str(f"loss {mean:.3f}")
            last = progress.steps == options.steps
            if last or progress.steps % options.evaluate_every == 0:
                held_out_loss = evaluate(accelerator, model, held_out)
                accelerator.log({"held_out/loss": held_out_loss}, step=progress.steps)
                accelerator.save_state()
                bits = held_out_loss / math.log(2)
                accelerator.print(f"step {progress.steps}: {bits:.3f} bits a character on held-out text")
            if last:
                break
        bar.close()
    seconds = time.monotonic() - began
    accelerator.end_training()
    if math.isnan(held_out_loss):
        accelerator.print("the checkpoint has all --steps already; give a larger number to continue")
        held_out_loss = evaluate(accelerator, model, held_out)

    # All processes generate, since with --zero 3 no process has all weights.
    if options.sample > 0:
        written = generate(model, text, options.prompt, options.sample, accelerator.device)
        accelerator.print("\n" + written)
    if options.json:
        steps = progress.steps - before
        seen = steps * options.batch_size * options.accumulate * accelerator.num_processes * options.context
        result = {"loss": held_out_loss, "precision": options.precision, "steps": progress.steps, "steps_now": steps}
        accelerator.print(json.dumps(result | {"characters_per_second": seen / seconds}))


def main() -> None:
    output = Path("runs/char_lm")
    parser = parser_of(__doc__, epochs=100, steps=400, batch_size=16, accumulate=2, output=output)
    add = parser.add_argument
    add("--lr", type=positive, default=2e-3, help="highest learning rate of AdamW")
    add("--warmup", type=whole(0), default=40, help="updates of the learning rate's warm-up")
    add("--clip", type=positive, default=1.0, help="largest norm of the gradients")
    add("--evaluate-every", type=whole(1), default=100, help="updates between evaluations")
    add("--precision", choices=("no", "bf16", "fp16"), default="no", help="precision of the computation")
    add("--layers", type=whole(1), default=4, help="blocks of the transformer")
    add("--heads", type=whole(1), default=4, help="attention heads of a block")
    add("--width", type=whole(1), default=128, help="width of the model; a multiple of --heads")
    add("--context", type=whole(1), default=128, help="context length in characters")
    add("--dropout", type=float, default=0.1, help="probability of dropout")
    add("--data", type=Path, default=SHAKESPEARE, help="a text file, or a folder with *_gut.txt")
    add("--prompt", default="ROMEO.\n", help="the start of the generated text")
    add("--sample", type=whole(0), default=400, help="characters to generate at the end")
    options = parser.parse_args()
    if options.width % options.heads:
        parser.error("--width is not a multiple of --heads; expected a multiple")
    if options.steps == 0:
        parser.error("--steps is 0; expected the number of updates, since the schedule ends there")
    train(options)


if __name__ == "__main__":
    main()
