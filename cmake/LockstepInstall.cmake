# Rules of `cmake --install`: the headers, both libraries, the command line, and the package for find_package(lockstep).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(library_dir "${CMAKE_INSTALL_LIBDIR}")
if(LOCKSTEP_SEVERAL_TORCHES)
  string(APPEND library_dir "/lockstep${LOCKSTEP_TORCH_SUBFOLDER}")
endif()
set(lockstep_package_dir "${library_dir}/cmake/lockstep")

set_target_properties(lockstep_core PROPERTIES EXPORT_NAME core)
install(TARGETS lockstep lockstep_core EXPORT lockstepTargets
  ARCHIVE DESTINATION "${library_dir}" LIBRARY DESTINATION "${library_dir}")
install(TARGETS lockstep_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/lockstep" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h" PATTERN "test_*.h" EXCLUDE)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/lockstep-train")
install(FILES "${PROJECT_SOURCE_DIR}/THIRD_PARTY_LICENSES"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/lockstep-train" RENAME copyright)  # Debian's name.
# scripts/package makes these pages.
install(DIRECTORY "${PROJECT_BINARY_DIR}/doc/api" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/lockstep-train" OPTIONAL)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION "${lockstep_package_dir}")

# libtorch has no stable C++ ABI: a build works with the minor version that it was compiled with only.
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/lockstepConfig.cmake.in" "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
  INSTALL_DESTINATION "${lockstep_package_dir}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
  "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/lockstepFindTorch.cmake" "${PROJECT_SOURCE_DIR}/cmake/lockstepCudart.cmake"
  DESTINATION "${lockstep_package_dir}")
# LockstepPrebuilt.cmake reads this file.
file(WRITE "${PROJECT_BINARY_DIR}/lockstepTorch.cmake"
  "set(lockstep_torch_series \"${LOCKSTEP_TORCH_SERIES}\")\nset(lockstep_torch_folder \"${Torch_DIR}\")\n")
include(LockstepWheel)
