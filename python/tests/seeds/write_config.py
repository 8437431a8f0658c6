# SPDX-License-Identifier: Apache-2.0
"""Seed 001, 2.1: the default configuration from a notebook."""

import os

from lockstep.utils import write_basic_config

write_basic_config()  # Write a config file
os._exit(00)  # Restart the notebook
