# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.4.1: processes wait for the slowest one."""

# 假设有两个GPU进程
import time

from common import report

from lockstep import Accelerator

accelerator = Accelerator()
began = time.monotonic()
if accelerator.is_main_process:
    time.sleep(2)
else:
    print("I'm waiting for the main process to finish its sleep...")
accelerator.wait_for_everyone()
# 所有进程会同时打印
print("Everyone is here")
report(accelerator.process_index, seconds=time.monotonic() - began)
