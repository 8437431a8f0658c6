# Installs the build folders of the list LOCKSTEP_PREBUILT instead of compiling. scripts/package makes the wheel of their
# files. Several folders have LOCKSTEP_SEVERAL_TORCHES and different minor versions of torch.
include(LockstepWheelTorch)
set(folders "")
set(series "")
foreach(build IN LISTS LOCKSTEP_PREBUILT)
  if(NOT EXISTS "${build}/lockstepTorch.cmake")
    message(FATAL_ERROR "[lockstep] LOCKSTEP_PREBUILT is not a build folder of Lockstep; got '${build}', "
      "expected the absolute path of a folder that ./dev build has configured")
  endif()
  include("${build}/lockstepTorch.cmake")
  list(APPEND folders "${lockstep_torch_folder}")
  list(APPEND series "${lockstep_torch_series}")
  set(core "python/lockstep/torch-${lockstep_torch_series}/_core${LOCKSTEP_MODULE_SUFFIX}")
  file(GLOB core_module "${build}/${core}")
  if(NOT core_module)
    message(FATAL_ERROR "[lockstep] ${build} has no Python module; expected ${core}; configure it "
      "with -DLOCKSTEP_BUILD_PYTHON=ON, or run ./dev package")
  endif()
  install(PROGRAMS ${core_module} DESTINATION "${SKBUILD_PLATLIB_DIR}/lockstep/torch-${lockstep_torch_series}")
  foreach(component Unspecified wheel)
    install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND \"${CMAKE_COMMAND}\" --install
      \"${build}\" --prefix \"\${CMAKE_INSTALL_PREFIX}\" --component ${component} --strip)"
      COMPONENT ${component})
  endforeach()
endforeach()
lockstep_check_wheel_torch("${folders}" ${series})
