# The few ways a target of this project is made.

function(lockstep_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror)
  # gcc 12 sees an overlap in `"text" + std::string()` where there is none (its bug 105651).
  target_compile_options(${target} PRIVATE
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endfunction()

function(lockstep_configure_core target)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_include_directories(${target} SYSTEM PRIVATE $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/fmt_only>)
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY=1
    LOCKSTEP_VERSION="${PROJECT_VERSION}")
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC nlohmann_json::nlohmann_json Threads::Threads
    PRIVATE ZLIB::ZLIB)
  lockstep_warnings(${target})
endfunction()

function(lockstep_configure_torch target)
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY=1)
  # The sources see the torch of the build machine; whoever links the installed library finds theirs.
  target_link_libraries(${target} PUBLIC lockstep_core torch PRIVATE ZLIB::ZLIB)
  lockstep_warnings(${target})
endfunction()

# lockstep_test(NAME [SERIAL] SOURCES... [LIBRARIES ...] [LABELS ...] [TIMEOUT s]): one GoogleTest
# program a folder. SERIAL: its tests need the whole machine.
function(lockstep_test name)
  if(NOT LOCKSTEP_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "SERIAL" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_include_directories(${name} SYSTEM PRIVATE "${CMAKE_BINARY_DIR}/fmt_only")
  target_compile_definitions(${name} PRIVATE FMT_HEADER_ONLY=1
    LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LOCKSTEP_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  lockstep_warnings(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/test")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" RUN_SERIAL ${arg_SERIAL})
endfunction()
