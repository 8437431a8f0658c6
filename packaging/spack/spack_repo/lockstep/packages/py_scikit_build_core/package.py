# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.packages.py_scikit_build_core.package import (
    PyScikitBuildCore as BuiltinPyScikitBuildCore,
)

from spack.package import *


class PyScikitBuildCore(BuiltinPyScikitBuildCore):
    """A release of scikit-build-core that is new enough for Lockstep."""

    version("1.1.2", sha256="7893709119c5ab1be75cd10442383132c9433b9f104dacef5185949efbea7974")
