# SPDX-License-Identifier: Apache-2.0
"""ParallelismConfig with cp_size and sp_size: processes divide sequences, and train as one process."""

from __future__ import annotations

from typing import Any

from launch import run_ranks

TRAIN = """
import os
import torch
from torch.nn import functional as F

from lockstep import Accelerator, ConfigError, ParallelismConfig
from lockstep.state import AcceleratorState


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(16, 8)
        self.places = torch.nn.Embedding(16, 8)
        self.qkv = torch.nn.Linear(8, 24)
        self.out = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.out(attended.transpose(1, 2).flatten(2)))


torch.manual_seed(0)
tokens = torch.randint(16, (6, 4, 16))
labels = torch.where(torch.rand(6, 4, 16) < 0.3, -100, torch.randint(16, (6, 4, 16)))
folder = os.environ["FOLDER"]


def prepared(config):
    AcceleratorState._reset_state()
    accelerator = Accelerator(parallelism_config=config)
    torch.manual_seed(1)
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)  # Adam scales the rounding of 0 up.
    return accelerator, *accelerator.prepare(net, optimizer)


def train(config):
    accelerator, net, optimizer = prepared(config)
    data = accelerator.state.num_processes // (config.non_data_parallel_size if config else 1)
    own = accelerator.process_index * data // accelerator.num_processes
    for step in range(6):
        x, y = (all[step].chunk(data)[own].clone() for all in (tokens, labels))
        with accelerator.maybe_context_parallel(buffers=[x, y], buffer_seq_dims=[1, 1]) as block:
            total = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum")
            accelerator.backward(block.mean(total, (y != -100).sum()))
        assert x.shape[1] == 16
        accelerator.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
    state = {name: value.clone() for name, value in accelerator.get_state_dict(net).items()}
    accelerator.free_memory()
    return state
"""

ONE = TRAIN + """
torch.save(train(None), os.path.join(folder, "one.pt"))
"""

SEVERAL = TRAIN + """
expected = torch.load(os.path.join(folder, "one.pt"))
for config in (ParallelismConfig(cp_size=2), ParallelismConfig(sp_size=2)):
    got = train(config)
    for name, value in expected.items():
        assert (got[name] - value).abs().max() < 1e-12, (config, name, (got[name] - value).abs().max())

# Without the block each process would attend to its part only.
accelerator, net, optimizer = prepared(ParallelismConfig(cp_size=2))
try:
    accelerator.backward(net(tokens[0]).square().mean())
except ConfigError as error:
    assert "maybe_context_parallel" in str(error), error
else:
    raise AssertionError("expected an error")
"""


def test_divided_sequences_train_as_in_one_process(tmp_path: Any) -> None:
    run_ranks(ONE, 1, FOLDER=str(tmp_path))
    run_ranks(SEVERAL, 2, FOLDER=str(tmp_path))
