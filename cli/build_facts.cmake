# The build facts of `lockstep env`, in a separate library, since each commit rebuilds it.
set(commit_header "${CMAKE_CURRENT_BINARY_DIR}/build_facts/lockstep_commit.h")
set(git_log "${PROJECT_SOURCE_DIR}/.git/logs/HEAD")
if(NOT EXISTS "${git_log}")
  set(git_log "")
endif()
set(write_commit "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DHEADER=${commit_header}"
  -P "${CMAKE_CURRENT_SOURCE_DIR}/build_commit.cmake")
add_custom_command(OUTPUT "${commit_header}"
  COMMAND ${write_commit}
  DEPENDS build_commit.cmake ${git_log}
  VERBATIM)
if(NOT EXISTS "${commit_header}")
  execute_process(COMMAND ${write_commit})  # clang-tidy reads the sources before the first build.
endif()

string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
set(build_flags "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}")
if(LOCKSTEP_SANITIZE)
  string(APPEND build_flags " -fsanitize=${LOCKSTEP_SANITIZE}")
endif()
if(CMAKE_SYSROOT)  # A folder of the build machine.
  string(REGEX REPLACE "-isystem ${CMAKE_SYSROOT}[^ ]*" "" build_flags "${build_flags}")
endif()
string(STRIP "${build_flags}" build_flags)

set(build_torch "${Torch_VERSION}")
if(LOCKSTEP_SEVERAL_TORCHES)  # A wheel has one command line for all of them.
  string(REPLACE "," ", " build_torch "${LOCKSTEP_SEVERAL_TORCHES}")
endif()

add_library(lockstep_build_facts STATIC common/build_facts.cpp "${commit_header}")
target_include_directories(lockstep_build_facts PRIVATE
  "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_BINARY_DIR}/build_facts")
target_compile_definitions(lockstep_build_facts PRIVATE
  LOCKSTEP_VERSION="${PROJECT_VERSION}" LOCKSTEP_BUILD_TYPE="${CMAKE_BUILD_TYPE}"
  LOCKSTEP_BUILD_FLAGS="${build_flags}" LOCKSTEP_BUILD_TORCH="${build_torch}")
lockstep_warnings(lockstep_build_facts)
