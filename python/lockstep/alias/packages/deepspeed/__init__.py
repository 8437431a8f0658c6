# SPDX-License-Identifier: Apache-2.0
"""A package that becomes Lockstep's module when it is imported. Its folder is in PYTHONPATH: docs/alias.md."""

from lockstep.alias._finder import replace  # `lockstep launch --alias` and lockstep.alias need lockstep in this Python.

replace(__name__)
