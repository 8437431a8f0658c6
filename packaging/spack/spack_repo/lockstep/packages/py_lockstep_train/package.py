# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyLockstepTrain(PythonPackage):
    """Lockstep trains PyTorch models on several processes, GPUs and hosts, from C++ or Python.

    It has the calls of Accelerate and DeepSpeed, and the command lockstep."""

    homepage = "https://pypi.org/project/lockstep-train/"
    pypi = "lockstep-train/lockstep_train-0.1.0.tar.gz"

    license("Apache-2.0", checked_by="lockstep")

    # PyPI has no release yet: `spack develop` names a working copy. A release adds its sha256.
    version("0.1.0")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@1.1", type="build")

    depends_on("python@3.10:", type=("build", "link", "run"))
    # libtorch has no stable C++ interface: Spack builds this package again for another torch.
    depends_on("py-torch@2.11:+distributed+gloo", type=("build", "link", "run"))
    # torch's headers include Gloo's.
    depends_on("gloo", type="build")
    depends_on("py-pybind11", type=("build", "link"))
    depends_on("py-numpy", type=("build", "run"))
    depends_on("py-safetensors", type=("build", "run"))
    depends_on("cli11@2.1:", type="build")
    depends_on("protozero", type="build")
    depends_on("nlohmann-json@3.11:", type=("build", "link"))
    depends_on("yaml-cpp@0.7:", type=("build", "link"))
    depends_on("zlib-api", type=("build", "link"))

    conflicts("%gcc@:11", msg="Lockstep needs gcc 12 or clang 14")
    conflicts("%clang@:13", msg="Lockstep needs gcc 12 or clang 14")

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        torch = self.spec["py-torch"].package.cmake_prefix_paths[0]
        env.set("Torch_DIR", join_path(torch, "Torch"))

    def config_settings(self, spec, prefix):
        # The libraries are packages of their own, so this package has no copies of them.
        return {"cmake.define.LOCKSTEP_BUNDLE_LIBRARIES": "OFF"}
