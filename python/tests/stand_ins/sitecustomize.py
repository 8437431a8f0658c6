# SPDX-License-Identifier: Apache-2.0
"""Sorts os.listdir, whose order depends on the file system, and which cv_example.py splits into two sets."""

import os

_listdir = os.listdir
os.listdir = lambda *arguments: sorted(_listdir(*arguments))
