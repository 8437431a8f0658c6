# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.4.2 to 2.4.4 and 2.8.3: saving and loading a model's weights and other objects."""

import os

import torch
from common import FOLDER, Net, make_net, report, weights_of

from lockstep import Accelerator, load_checkpoint_in_model

accelerator = Accelerator()
device = accelerator.device
model = accelerator.prepare(make_net(seed=accelerator.process_index))
name = model.__class__.__name__
unwrapped_name = accelerator.unwrap_model(model).__class__.__name__
saved = weights_of(model)

# 2.4.2
save_directory = str(FOLDER / "whole")
accelerator.wait_for_everyone()
accelerator.save_model(model, save_directory)
accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(save_directory, "pytorch_model.bin"))
accelerator.wait_for_everyone()
unwrapped_model = accelerator.unwrap_model(make_net(seed=9))  # 取消包装模型
path_to_checkpoint = os.path.join(save_directory, "pytorch_model.bin")
unwrapped_model.load_state_dict(torch.load(path_to_checkpoint))  # 加载检查点
from_bin = weights_of(unwrapped_model)

# 2.4.3
accelerator.wait_for_everyone()
accelerator.save_model(model, str(FOLDER / "gigabyte"), max_shard_size="1GB", safe_serialization=True)
accelerator.save_model(model, str(FOLDER / "shards"), max_shard_size="1KB", safe_serialization=True)
accelerator.wait_for_everyone()
loaded = {}
for folder in ("whole", "gigabyte", "shards"):
    unwrapped_model = Net()
    load_checkpoint_in_model(unwrapped_model, str(FOLDER / folder), device_map={"": device})
    loaded[folder] = weights_of(unwrapped_model)


# 2.4.4, with a class that has Transformers' save_pretrained.
class PreTrained(Net):
    def save_pretrained(self, folder, is_main_process, save_function):
        if is_main_process:
            os.makedirs(folder, exist_ok=True)
            save_function(self.state_dict(), os.path.join(folder, "weights.bin"))


pretrained = accelerator.prepare(PreTrained())
unwrapped_model = accelerator.unwrap_model(pretrained)
unwrapped_model.save_pretrained(
    str(FOLDER / "my_model_directory"),
    is_main_process=accelerator.is_main_process,
    save_function=accelerator.save,
)

# 2.8.3
arr = [0, 1, 2, 3]
accelerator.save(arr, FOLDER / "array.pkl")
accelerator.wait_for_everyone()
arr = torch.load(FOLDER / "array.pkl")

# 2.8.2
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
accelerator.free_memory()
del model, optimizer, scheduler

report(
    accelerator.process_index,
    name=name,
    unwrapped_name=unwrapped_name,
    saved=saved,
    from_bin=from_bin,
    loaded=loaded,
    array=arr,
    files={
        folder: sorted(os.listdir(FOLDER / folder)) for folder in ("whole", "gigabyte", "shards", "my_model_directory")
    },
)
