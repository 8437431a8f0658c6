# Configures cpack, which makes the Debian package lockstep-train from the install rules; scripts/package calls cpack.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_series "${Torch_VERSION}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep-train)
set(CPACK_PACKAGE_CONTACT "Lockstep's maintainers <maintainers@lockstep.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training with PyTorch from C++")
set(CPACK_PACKAGE_DESCRIPTION
"Lockstep has data parallel training, ZeRO stages 1 to 3, DeepSpeed's engine and
the launcher lockstep. This package has the command line, the headers, the static
libraries and the CMake package lockstep.

The libraries are built with torch ${Torch_VERSION} and need torch ${torch_series}, which Debian
lacks: install it with pip. CMake finds it by Torch_DIR (the folder
torch/share/cmake/Torch) or CMAKE_PREFIX_PATH, or in the active Python
environment. lockstep test needs torch/lib in LD_LIBRARY_PATH.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
# dpkg-shlibdeps adds the libraries of the programs. find_package(lockstep) needs these. Debian has no package of this libtorch.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libyaml-cpp-dev, nlohmann-json3-dev, zlib1g-dev")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cmake, g++, libcurl4")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${TORCH_INSTALL_PREFIX}/lib")
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/debian_files.cmake")
include(CPack)
