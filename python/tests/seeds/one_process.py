# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.2 and 2.3: code for one process, progress bars, and the type of the job."""

from argparse import Namespace

from common import FOLDER, report
from tqdm.auto import tqdm

from lockstep import Accelerator, DistributedType

args = Namespace(max_train_steps=5)
accelerator = Accelerator()
rank = accelerator.process_index
ran = []

if accelerator.distributed_type == DistributedType.TPU:
    # 执行静态形状的操作
    ran.append("static shapes")
else:
    # 可以灵活使用
    ran.append("any shapes")

# 为了避免输出中出现多个进度条，您应该只在本地主进程上显示一个
progress_bar = tqdm(range(args.max_train_steps), disable=not accelerator.is_local_main_process)
for _ in range(args.max_train_steps):
    progress_bar.update(1)
shown = not progress_bar.disable
progress_bar.close()

if accelerator.is_main_process:
    ran.append("main")
if accelerator.is_local_main_process:
    ran.append("local main")


@accelerator.on_main_process
def download():
    (FOLDER / "data.txt").write_text("downloaded once", encoding="utf-8")
    ran.append("download")


@accelerator.on_local_main_process
def unpack():
    ran.append("unpack")


@accelerator.on_process(process_index=accelerator.num_processes - 1)
def upload():
    ran.append("upload")


@accelerator.on_last_process
def finish():
    ran.append("finish")


for function in (download, unpack, upload, finish):
    function()

order = FOLDER / "order.txt"
with accelerator.main_process_first():
    seen = order.read_text(encoding="utf-8") if order.exists() else ""
    order.write_text(seen + str(rank), encoding="utf-8")
with accelerator.local_main_process_first():
    seen_again = (FOLDER / "cache").exists()
    (FOLDER / "cache").touch()

accelerator.print("printed once")
accelerator.wait_for_everyone()
report(
    rank, ran=ran, seen=seen, seen_again=seen_again, data=(FOLDER / "data.txt").read_text(encoding="utf-8"),
    shown=shown,
)
