# Functions that define the targets of this project.

function(lockstep_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
    $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
  # gcc 12 sees an overlap in `"text" + std::string()` where there is none (its bug 105651), and with precompiled
  # headers also an overflow there. gcc 13 sees overflows and wrong pointers in inlined std::vectors.
  target_compile_options(${target} PRIVATE
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,14>>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow>
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,14>>:-Wno-free-nonheap-object>)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
    # clang lacks these macros of gcc.
    string(REPLACE "," ";" sanitizers "${LOCKSTEP_SANITIZE}")
    foreach(sanitizer IN LISTS sanitizers)
      string(TOUPPER "__SANITIZE_${sanitizer}__" macro)
      target_compile_definitions(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang>:${macro}=1>)
    endforeach()
    # gcc warns that ThreadSanitizer ignores fences; the flight recorder, which has them, only orders atomics by them.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
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

# lockstep_join_sources(TARGET COUNT): compiles COUNT sources as one, since most of the time is spent on headers and
# templates. For full builds; with -DLOCKSTEP_UNITY=OFF a change recompiles less.
function(lockstep_join_sources target count)
  if(LOCKSTEP_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${count})
    # gcc takes the included sources for headers.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# lockstep_unity(TARGET HEADERS...): joins sources and precompiles headers.
function(lockstep_unity target)
  lockstep_join_sources(${target} 16)
  lockstep_precompile(${target} ${ARGN})
endfunction()

# The headers that most sources without torch include.
set(lockstep_core_headers <filesystem> <fmt/format.h> <fmt/ranges.h> <functional> <map> <nlohmann/json.hpp>)

# Settings of both libraries, static or shared. Programs leave out the functions that they do not use.
function(lockstep_configure_library target)
  set_target_properties(${target} PROPERTIES
    VERSION "${PROJECT_VERSION}" SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}"
    VISIBILITY_INLINES_HIDDEN ON
    DEFINE_SYMBOL "")  # Static and shared libraries have the same objects.
  target_compile_options(${target} PRIVATE -ffunction-sections -fdata-sections)
  target_link_options(${target} INTERFACE LINKER:--gc-sections)
endfunction()

# lockstep_install_rpath(TARGET FOLDER [RPATH...]): lets a program that is installed in FOLDER find Lockstep's shared
# libraries, and those in RPATHs.
function(lockstep_install_rpath target folder)
  set(rpath ${ARGN})
  if(BUILD_SHARED_LIBS)
    file(RELATIVE_PATH to_libraries "/${folder}" "/${CMAKE_INSTALL_LIBDIR}")
    list(PREPEND rpath "$ORIGIN/${to_libraries}")
  endif()
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath}")
endfunction()

function(lockstep_configure_core target)
  lockstep_configure_library(${target})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_include_directories(${target} SYSTEM PRIVATE
    $<BUILD_INTERFACE:${LOCKSTEP_FMT_ONLY}> $<BUILD_INTERFACE:${LOCKSTEP_PROTOZERO_INCLUDE}>)
  target_compile_definitions(${target} PRIVATE LOCKSTEP_VERSION="${PROJECT_VERSION}")
  target_compile_features(${target} PUBLIC cxx_std_20)
  # lockstepConfig.cmake defines lockstep::json and the others.
  target_link_libraries(${target}
    PUBLIC Threads::Threads $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> $<INSTALL_INTERFACE:lockstep::json>
    PRIVATE $<BUILD_INTERFACE:ZLIB::ZLIB> $<INSTALL_INTERFACE:lockstep::zlib>
      $<BUILD_INTERFACE:${LOCKSTEP_YAML_CPP}> $<INSTALL_INTERFACE:lockstep::yaml_cpp>)
  lockstep_warnings(${target})
  lockstep_unity(${target} ${lockstep_core_headers})
endfunction()

function(lockstep_configure_torch target)
  lockstep_configure_library(${target})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN;${TORCH_INSTALL_PREFIX}/lib")
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

# Adds precompiled headers for tests, which save two thirds of gcc's time: lockstep_test_headers for tests with torch,
# and lockstep_core_test_headers for full builds of the others.
function(lockstep_add_test_headers)
  set(libraries lockstep)
  if(LOCKSTEP_UNITY)
    list(APPEND libraries lockstep_core)
  endif()
  foreach(library ${libraries})
    # A program, since the tests are compiled with -fPIE, and a library would be with -fPIC.
    add_executable(${library}_test_headers "${PROJECT_SOURCE_DIR}/tests/precompiled.cpp")
    set_target_properties(${library}_test_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/test")
    target_link_libraries(${library}_test_headers PRIVATE ${library} GTest::gmock)
    target_precompile_headers(${library}_test_headers PRIVATE "${PROJECT_SOURCE_DIR}/tests/precompiled_${library}.h")
    lockstep_runs_once(${library}_test_headers)
    lockstep_warnings(${library}_test_headers)
  endforeach()
  if(LOCKSTEP_UNITY)
    target_include_directories(lockstep_core_test_headers SYSTEM PRIVATE "${LOCKSTEP_FMT_ONLY}")
  endif()
endfunction()

# Lets a target use the precompiled headers of tests with torch (lockstep) or without (lockstep_core).
function(lockstep_use_test_headers target library)
  target_link_libraries(${target} PRIVATE GTest::gmock)  # Its macros are in the headers.
  target_precompile_headers(${target} REUSE_FROM ${library}_test_headers)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # For ccache.
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
  if("lockstep" IN_LIST arg_LIBRARIES)
    lockstep_use_test_headers(${name} lockstep)
  endif()
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
  lockstep_join_sources(${name} 16)
  if("lockstep" IN_LIST arg_LIBRARIES)
    lockstep_use_test_headers(${name} lockstep)
  elseif(LOCKSTEP_UNITY)
    lockstep_use_test_headers(${name} lockstep_core)
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
