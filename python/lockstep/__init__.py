# SPDX-License-Identifier: Apache-2.0
"""Lockstep's C++ library and launcher, as installed by pip.

`cmake_prefix_path` is the value of CMAKE_PREFIX_PATH with which CMake's find_package(lockstep) finds the library.
"""
from importlib import metadata as _metadata

__all__ = ["__version__", "cmake_prefix_path"]

_installed = _metadata.distribution("lockstep-train")
__version__ = _installed.version
# The folder of lib/cmake/lockstep; pip may install it elsewhere than in sys.prefix, with --user for example.
cmake_prefix_path = next(
    str(file.locate().resolve().parents[3]) for file in _installed.files or () if file.name == "lockstepConfig.cmake"
)
