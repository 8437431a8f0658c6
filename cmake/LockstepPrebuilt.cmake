# Installs the build folder LOCKSTEP_PREBUILT instead of compiling. scripts/package makes the wheel of that folder's files.
if(NOT EXISTS "${LOCKSTEP_PREBUILT}/lockstepTorch.cmake")
  message(FATAL_ERROR "[lockstep] LOCKSTEP_PREBUILT is not a build folder of Lockstep; got '${LOCKSTEP_PREBUILT}', "
    "expected the absolute path of a folder that ./dev build has configured")
endif()
include(LockstepWheelTorch)
include("${LOCKSTEP_PREBUILT}/lockstepTorch.cmake")
lockstep_check_wheel_torch("${lockstep_torch_version}" "${lockstep_torch_folder}")
file(GLOB core_module "${LOCKSTEP_PREBUILT}/python/lockstep/_core.*.so")
if(NOT core_module)
  message(FATAL_ERROR "[lockstep] ${LOCKSTEP_PREBUILT} has no Python module; expected python/lockstep/_core.*.so; configure it "
    "with -DLOCKSTEP_BUILD_PYTHON=ON, or run ./dev package")
endif()
install(PROGRAMS ${core_module} DESTINATION "${SKBUILD_PLATLIB_DIR}/lockstep")
install(FILES "${LOCKSTEP_PREBUILT}/python/lockstep/torch_series.txt" DESTINATION "${SKBUILD_PLATLIB_DIR}/lockstep")
foreach(component Unspecified wheel)
  install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND \"${CMAKE_COMMAND}\" --install
    \"${LOCKSTEP_PREBUILT}\" --prefix \"\${CMAKE_INSTALL_PREFIX}\" --component ${component} --strip)"
    COMPONENT ${component})
endforeach()
