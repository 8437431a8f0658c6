# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.4.4: training, saving and loading a model of Transformers. It is small, and made here."""

import torch
from common import FOLDER, report, weights_of
from transformers import AutoModel, BertConfig

from lockstep import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
config = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
model = AutoModel.from_config(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)

# ...fine-tune with PyTorch...
tokens = torch.arange(24, device=accelerator.device).reshape(2, 12)
losses = []
for step in range(10):
    loss = model(input_ids=tokens).last_hidden_state[:, :, 0].sub(1).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

unwrapped_model = accelerator.unwrap_model(model)
unwrapped_model.save_pretrained(
    str(FOLDER / "my_model_directory"),
    is_main_process=accelerator.is_main_process,
    save_function=accelerator.save,
)
accelerator.wait_for_everyone()

model = AutoModel.from_pretrained(str(FOLDER / "my_model_directory"))
report(accelerator.process_index, losses=losses, trained=weights_of(unwrapped_model), loaded=weights_of(model))
