# lockstep_check_wheel_torch(VERSION FOLDER): refuses a torch that is not the one which the wheel's metadata require.
function(lockstep_check_wheel_torch version folder)
  execute_process(COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/torch_requirement.py"
    OUTPUT_VARIABLE required OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT version MATCHES "^${required}(\\.|$)")
    message(FATAL_ERROR "[lockstep] the wheel would contain libraries for another torch than it requires; got torch "
      "${version} in ${folder}, expected ${required}.x, that of ${Python_EXECUTABLE} or of the environment variable "
      "Torch_DIR; set that variable instead of the one of CMake")
  endif()
endfunction()
