# SPDX-License-Identifier: Apache-2.0
"""Names that a Python block in the documentation may use without defining them: the reader's model and data.

scripts/check_docs_python runs each block after this module, in an empty folder. A block imports the rest itself."""
import argparse
import json
import os
from pathlib import Path

import torch

__all__ = ["Net", "args", "dataset", "images", "loader", "model", "net", "optimizer", "training_loop"]

# A server that is away: values wait in a file, and end_training waits for it for 10 s.
os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"
# torchrun's variables of a job of one process.
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")


class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(8, 4))


class ModelWithLoss(torch.nn.Module):
    """Returns the loss of a batch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, batch):
        return self.layer(batch).square().mean()


def training_loop(mixed_precision, seed, batch_size):
    from lockstep import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision=mixed_precision)
    assert accelerator.num_processes == 2 and (seed, batch_size) == (42, 64)


torch.manual_seed(0)
dataset = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model = ModelWithLoss()
loader = list(torch.randn(1000, 4, 8))
images = torch.rand(2, 3, 8, 8)
args = argparse.Namespace()
Path("ds_config.json").write_text(
    json.dumps(
        {
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "scheduler": {"type": "WarmupLR"},
        }
    ),
    encoding="utf-8",
)
