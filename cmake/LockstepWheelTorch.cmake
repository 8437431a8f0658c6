# lockstep_check_wheel_torch(FOLDERS SERIES...): refuses libraries for other minor versions of torch than those that the
# wheel's metadata require.
function(lockstep_check_wheel_torch folders)
  execute_process(COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/torch_requirement.py"
    OUTPUT_VARIABLE required OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(built ${ARGN})
  list(JOIN built ";" built)
  if(NOT built STREQUAL required)
    message(FATAL_ERROR "[lockstep] the wheel would contain libraries for another torch than it requires; got torch "
      "${built} in ${folders}, expected ${required}, that of ${Python_EXECUTABLE} or of the environment variable "
      "Torch_DIR; set that variable instead of the one of CMake")
  endif()
endfunction()
