# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 1.3: evaluation with gather_for_metrics, with gather, and on the main process alone."""

import numpy as np
import torch
from common import make_net, numbers, report

from lockstep import Accelerator

accelerator = Accelerator()
model = make_net()
plain_dataloader = torch.utils.data.DataLoader(numbers(101), batch_size=8)
validation_dataloader = torch.utils.data.DataLoader(numbers(101), batch_size=8)
eval_dataloader = torch.utils.data.DataLoader(numbers(101), batch_size=8)

model, validation_dataloader = accelerator.prepare(model, validation_dataloader)

metric = []
for source, targets in validation_dataloader:
    predictions = model(source)
    # 汇总所有的predictions和targets
    all_predictions, all_targets = accelerator.gather_for_metrics((predictions, targets))
    metric.append((all_predictions.argmax(dim=-1), all_targets))

eval_dataloader = accelerator.prepare(eval_dataloader)
predictions, labels = [], []
for source, targets in eval_dataloader:
    with torch.no_grad():
        output = model(source)
    predictions.append(accelerator.gather(output).cpu().numpy())
    labels.append(accelerator.gather(targets).cpu().numpy())

predictions = np.concatenate(predictions)
labels = np.concatenate(labels)
gathered = len(labels)
predictions = predictions[: len(eval_dataloader.dataset)]
labels = labels[: len(eval_dataloader.dataset)]

# Tensors of different sizes: padded, then gathered.
own = torch.full((2 + accelerator.process_index, 3), float(accelerator.process_index))
padded = accelerator.gather(accelerator.pad_across_processes(own, dim=0, pad_index=-1))

alone = None
if accelerator.is_main_process:
    # Evaluation loop
    with torch.no_grad():
        alone = [model(source.to(accelerator.device)).argmax(dim=-1).tolist() for source, _ in plain_dataloader]
    alone = [value for batch in alone for value in batch]

report(
    accelerator.process_index,
    for_metrics=torch.cat([batch for batch, _ in metric]).tolist(),
    for_metrics_targets=torch.cat([batch for _, batch in metric]).tolist(),
    with_gather=predictions.argmax(-1).tolist(),
    with_gather_targets=labels.tolist(),
    gathered=gathered,
    expected_targets=numbers(101).tensors[1].tolist(),
    alone=alone,
    padded=padded.tolist(),
)
