# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Protozero(CMakePackage):
    """Protozero is a header-only decoder and encoder of protocol buffers in C++."""

    homepage = "https://github.com/mapbox/protozero"
    url = "https://github.com/mapbox/protozero/archive/refs/tags/v1.7.1.tar.gz"

    license("BSD-2-Clause AND Apache-2.0", checked_by="lockstep")

    version("1.7.1", sha256="27e0017d5b3ba06d646a3ec6391d5ccc8500db821be480aefd2e4ddc3de5ff99")

    depends_on("cxx", type="build")

    def cmake_args(self):
        return [self.define("BUILD_TESTING", False)]
