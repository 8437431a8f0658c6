# Functions that define the targets of this project.

function(lockstep_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
    $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
  # gcc 12 sees an overlap in `"text" + std::string()` where there is none (its bug 105651), and with precompiled
  # headers also an overflow there.
  target_compile_options(${target} PRIVATE
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow>)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endfunction()

# lockstep_precompile(TARGET HEADERS...): compiles the headers once for all sources. Only with LOCKSTEP_UNITY. Sources
# include what they use nevertheless: `./dev lint` compiles each of them alone.
function(lockstep_precompile target)
  if(LOCKSTEP_UNITY)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    # Lets ccache keep the objects.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
      "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
endfunction()

# lockstep_unity(TARGET HEADERS...): also compiles several sources as one, since half of the time is spent on headers.
# For full builds; with -DLOCKSTEP_UNITY=OFF a change recompiles less.
function(lockstep_unity target)
  if(LOCKSTEP_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    # gcc takes the included sources for headers.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
  lockstep_precompile(${target} ${ARGN})
endfunction()

function(lockstep_configure_core target)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_include_directories(${target} SYSTEM PRIVATE $<BUILD_INTERFACE:${LOCKSTEP_FMT_ONLY}>)
  target_compile_definitions(${target} PRIVATE LOCKSTEP_VERSION="${PROJECT_VERSION}")
  target_compile_features(${target} PUBLIC cxx_std_20)
  # lockstepConfig.cmake defines lockstep::json and the others.
  target_link_libraries(${target}
    PUBLIC Threads::Threads $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> $<INSTALL_INTERFACE:lockstep::json>
    PRIVATE $<BUILD_INTERFACE:ZLIB::ZLIB> $<INSTALL_INTERFACE:lockstep::zlib>
      $<BUILD_INTERFACE:${LOCKSTEP_YAML_CPP}> $<INSTALL_INTERFACE:lockstep::yaml_cpp>)
  lockstep_warnings(${target})
  lockstep_unity(${target} <filesystem> <fmt/format.h> <fmt/ranges.h> <functional> <map> <nlohmann/json.hpp>)
endfunction()

function(lockstep_configure_torch target)
  # The build uses this machine's torch; programs that link the installed library find their own.
  target_link_libraries(${target} PUBLIC lockstep_core torch
    PRIVATE $<BUILD_INTERFACE:ZLIB::ZLIB> $<INSTALL_INTERFACE:lockstep::zlib>)
  lockstep_warnings(${target})
  lockstep_unity(${target} <ATen/core/Tensor.h> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>
    <torch/optim/optimizer.h> <torch/types.h>)
endfunction()

# For commands and tests, whose speed is not worth the time of -O2, a third of gcc's.
function(lockstep_runs_once target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Adds precompiled headers for tests with torch, which save two thirds of gcc's time.
function(lockstep_add_test_headers)
  # A program, since the tests are compiled with -fPIE, and a library would be with -fPIC.
  add_executable(lockstep_test_headers "${PROJECT_SOURCE_DIR}/tests/precompiled.cpp")
  set_target_properties(lockstep_test_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/test")
  target_link_libraries(lockstep_test_headers PRIVATE lockstep GTest::gmock)
  target_precompile_headers(lockstep_test_headers PRIVATE "${PROJECT_SOURCE_DIR}/tests/precompiled.h")
  lockstep_runs_once(lockstep_test_headers)
  lockstep_warnings(lockstep_test_headers)
endfunction()

# lockstep_fixture(NAME [LIBRARIES ...]): adds the program NAME, from NAME.cpp, which tests run.
function(lockstep_fixture name)
  cmake_parse_arguments(arg "" "" "LIBRARIES" ${ARGN})
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/test")
  lockstep_runs_once(${name})
  lockstep_warnings(${name})
endfunction()

# lockstep_test(NAME [SERIAL] SOURCES... [LIBRARIES ...] [LABELS ...] [TIMEOUT s]): adds the GoogleTest program
# of a folder. SERIAL: its tests need the whole machine. ctest has tests with torch twice, one by one and
# together, since loading torch takes 0.3 s: `./dev test` runs them together, with arguments (-R NAME) one by one.
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
  target_include_directories(${name} SYSTEM PRIVATE "${LOCKSTEP_FMT_ONLY}")
  lockstep_runs_once(${name})
  if("lockstep" IN_LIST arg_LIBRARIES)
    target_precompile_headers(${name} REUSE_FROM lockstep_test_headers)
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # For ccache.
  endif()
  target_compile_definitions(${name} PRIVATE
    LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LOCKSTEP_BIN_DIR="${PROJECT_BINARY_DIR}/bin")
  lockstep_warnings(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/test")
  if("lockstep" IN_LIST arg_LIBRARIES AND NOT arg_LABELS)
    set(arg_LABELS one_by_one)
    add_test(NAME together.${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
    set_tests_properties(together.${name} PROPERTIES TIMEOUT 600 LABELS together)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" RUN_SERIAL ${arg_SERIAL})
endfunction()
