# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the package torchvision."""
