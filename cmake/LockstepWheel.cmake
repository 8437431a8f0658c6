# Defines the install component `wheel`: the files that only a Python wheel has. pip cannot install Debian's libraries, so
# the wheel contains copies of them, and its programs find torch relative to themselves. conda and Spack can install them.
if(DEFINED SKBUILD)
  include(LockstepWheelTorch)
  lockstep_check_wheel_torch("${Torch_DIR}" ${LOCKSTEP_TORCH_SERIES})
  install(TARGETS lockstep_python LIBRARY DESTINATION "${SKBUILD_PLATLIB_DIR}/lockstep/torch-${LOCKSTEP_TORCH_SERIES}"
    COMPONENT wheel EXCLUDE_FROM_ALL)
endif()
if(NOT LOCKSTEP_BUNDLE_LIBRARIES)
  return()
endif()
if(BUILD_SHARED_LIBS)
  install(CODE "message(FATAL_ERROR \"[lockstep] a wheel contains static libraries; got BUILD_SHARED_LIBS=ON, expected OFF\")"
    COMPONENT wheel EXCLUDE_FROM_ALL)
  return()
endif()
find_library(LOCKSTEP_ZLIB_STATIC NAMES libz.a)
get_target_property(yaml_cpp_type ${LOCKSTEP_YAML_CPP_SHARED} TYPE)
if(NOT LOCKSTEP_YAML_CPP_STATIC OR NOT LOCKSTEP_ZLIB_STATIC OR NOT yaml_cpp_type STREQUAL "SHARED_LIBRARY")
  if(DEFINED SKBUILD)
    message(FATAL_ERROR "[lockstep] the static or the shared library of yaml-cpp, or libz.a, is missing; expected all of "
      "them, since a wheel contains copies; install Debian's libyaml-cpp-dev and zlib1g-dev, or set "
      "LOCKSTEP_YAML_CPP_STATIC and LOCKSTEP_ZLIB_STATIC to the files libyaml-cpp.a and libz.a")
  endif()
  return()
endif()

# lockstepBundled.cmake chooses the static or the shared library by the kind of target that links it.
set(bundled_dir "${CMAKE_INSTALL_LIBDIR}/lockstep")
install(FILES "${LOCKSTEP_YAML_CPP_STATIC}" DESTINATION "${bundled_dir}" RENAME libyaml-cpp.a
  COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES "$<TARGET_FILE:${LOCKSTEP_YAML_CPP_SHARED}>" DESTINATION "${bundled_dir}" RENAME "$<TARGET_SONAME_FILE_NAME:${LOCKSTEP_YAML_CPP_SHARED}>"
  COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES "${LOCKSTEP_ZLIB_STATIC}" DESTINATION "${bundled_dir}" RENAME libz.a COMPONENT wheel EXCLUDE_FROM_ALL)
list(GET ZLIB_LIBRARIES 0 zlib_shared)
file(REAL_PATH "${zlib_shared}" zlib_shared)
install(FILES "${zlib_shared}" DESTINATION "${bundled_dir}" RENAME libz.so.1 COMPONENT wheel EXCLUDE_FROM_ALL)
get_target_property(json_folders nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
find_path(LOCKSTEP_JSON_HEADERS nlohmann/json.hpp HINTS ${json_folders} REQUIRED)
install(DIRECTORY "${LOCKSTEP_JSON_HEADERS}/nlohmann" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep/third_party"
  COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/lockstepBundled.cmake" DESTINATION "${lockstep_package_dir}"
  COMPONENT wheel EXCLUDE_FROM_ALL)

# Removes the folder of this machine's torch.
list(JOIN LOCKSTEP_TORCH_RPATH ":" wheel_rpath)
set(selftest "${CMAKE_INSTALL_LIBEXECDIR}/lockstep${LOCKSTEP_TORCH_SUBFOLDER}/lockstep_selftest")
install(CODE "file(RPATH_CHANGE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${selftest}\"
  OLD_RPATH [[${wheel_rpath}:${TORCH_INSTALL_PREFIX}/lib]] NEW_RPATH [[${wheel_rpath}]])"
  COMPONENT wheel EXCLUDE_FROM_ALL)

if(LOCKSTEP_SEVERAL_TORCHES)
  # These choose the files for the installed torch.
  set(choosing_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/lockstepSeveralConfig.cmake" DESTINATION "${choosing_dir}"
    RENAME lockstepConfig.cmake COMPONENT wheel EXCLUDE_FROM_ALL)
  install(FILES "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake" "${PROJECT_SOURCE_DIR}/cmake/lockstepFindTorch.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/lockstepCudart.cmake" DESTINATION "${choosing_dir}" COMPONENT wheel EXCLUDE_FROM_ALL)
  install(PROGRAMS "${PROJECT_SOURCE_DIR}/cmake/several_selftests.sh" DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/lockstep"
    RENAME lockstep_selftest COMPONENT wheel EXCLUDE_FROM_ALL)
endif()
