# Settings of all targets: options, C++ standard, sanitizers, output folder, dependencies.
# A project that adds this folder (add_subdirectory, FetchContent) gets the libraries and the command line.
option(LOCKSTEP_BUILD_TESTS "Build the test suite" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BUILD_BENCH "Build the benchmark programs" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BUILD_PYTHON "Build the module of the Python package lockstep; needs Python's headers" OFF)
option(LOCKSTEP_INSTALL "Let `cmake --install` install Lockstep" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_WERROR "Treat warnings in Lockstep's own sources as errors" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BUNDLE_LIBRARIES "Let a wheel contain yaml-cpp, zlib and nlohmann-json" ON)
set(LOCKSTEP_SEVERAL_TORCHES "" CACHE STRING
  "The minor versions of torch in a wheel with files for several, such as 2.13,2.14; scripts/wheels sets it")
option(BUILD_SHARED_LIBS "Build shared libraries, and thus smaller programs, instead of static libraries" OFF)
set(lockstep_unity_default ON)
if(PROJECT_IS_TOP_LEVEL)  # Its developers change sources.
  set(lockstep_unity_default OFF)
endif()
option(LOCKSTEP_UNITY "Compile several sources of a library at once: a full build takes a third of the time" ${lockstep_unity_default})
if(LOCKSTEP_BUILD_TESTS AND NOT LOCKSTEP_BUILD_EXAMPLES)
  message(FATAL_ERROR "[lockstep] LOCKSTEP_BUILD_TESTS needs LOCKSTEP_BUILD_EXAMPLES, since the tests run the examples; "
    "set both ON, or LOCKSTEP_BUILD_TESTS=OFF")
endif()
set(LOCKSTEP_FOLDERS "" CACHE STRING "Build only these folders of lockstep/ and their tests, for ./dev sanitize; empty: everything")
set(LOCKSTEP_SANITIZE "" CACHE STRING "address, undefined or thread, or address,undefined: build all of Lockstep with these sanitizers")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)  # There are none, and CMake with gcc 14 or newer would search every source.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

if(LOCKSTEP_UNITY)  # clang-tidy, which reads the commands of other builds, does not know the option.
  # gcc frees memory less often, which saves a tenth of its time and costs 0.3 GB.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)
endif()

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${LOCKSTEP_CCACHE}")
  if(LOCKSTEP_UNITY AND NOT PROJECT_IS_TOP_LEVEL)  # For the precompiled headers; ./dev sets it, too.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${LOCKSTEP_CCACHE}")
  endif()
endif()

# Makes the imported targets visible to the folder that adds this one.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(yaml-cpp 0.7 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
# Only headers: Debian's libprotozero-dev.
find_path(LOCKSTEP_PROTOZERO_INCLUDE protozero/pbf_writer.hpp REQUIRED)
find_package(CLI11 2.1 REQUIRED)
include(lockstepCudart)
find_package(Torch 2.11 REQUIRED)
if(LOCKSTEP_SEVERAL_TORCHES AND TARGET torch_cuda_library)
  # The files of such a wheel also serve a torch for CPUs, which lacks libtorch_cuda.so. A torch for CUDA loads it itself.
  set_property(TARGET torch_cuda_library PROPERTY INTERFACE_LINK_LIBRARIES "")
endif()
# yaml-cpp 0.7 has the second name only; 0.10 will have the first only.
set(LOCKSTEP_YAML_CPP_SHARED yaml-cpp::yaml-cpp)
if(NOT TARGET yaml-cpp::yaml-cpp)
  set(LOCKSTEP_YAML_CPP_SHARED yaml-cpp)
endif()
# Programs of this project contain yaml-cpp if its static library exists. So the programs in a wheel need no Debian package.
set(LOCKSTEP_YAML_CPP "${LOCKSTEP_YAML_CPP_SHARED}")
find_library(LOCKSTEP_YAML_CPP_STATIC NAMES libyaml-cpp.a)
if(PROJECT_IS_TOP_LEVEL AND LOCKSTEP_YAML_CPP_STATIC)
  add_library(lockstep_yaml_cpp STATIC IMPORTED)
  set_target_properties(lockstep_yaml_cpp PROPERTIES IMPORTED_LOCATION "${LOCKSTEP_YAML_CPP_STATIC}")
  # Shared libraries link the shared one, because Debian's static library is compiled without -fPIC.
  set(LOCKSTEP_YAML_CPP "$<IF:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>,lockstep_yaml_cpp,${LOCKSTEP_YAML_CPP_SHARED}>")
endif()

# Files for this torch are in a folder of their own if a wheel contains those for several.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" LOCKSTEP_TORCH_SERIES "${Torch_VERSION}")
set(LOCKSTEP_TORCH_SUBFOLDER "")
set(from_selftest "$ORIGIN/../..")
if(LOCKSTEP_SEVERAL_TORCHES)
  set(LOCKSTEP_TORCH_SUBFOLDER "/torch-${LOCKSTEP_TORCH_SERIES}")
  string(APPEND from_selftest "/..")
endif()
# An installed program finds torch in the Python environment that contains both. Each Python version has its own folder.
set(LOCKSTEP_TORCH_RPATH "")
foreach(minor RANGE 10 15)
  list(APPEND LOCKSTEP_TORCH_RPATH "${from_selftest}/lib/python3.${minor}/site-packages/torch/lib")
endforeach()

if(LOCKSTEP_BUILD_TESTS)
  enable_testing()
  find_package(GTest 1.12 REQUIRED)
  include(GoogleTest)
endif()

# The torch wheel has its own fmt, which must be found first. Code that must not include torch gets a
# folder with a link to that fmt only.
find_path(LOCKSTEP_TORCH_INCLUDE fmt/format.h HINTS ${TORCH_INCLUDE_DIRS} NO_DEFAULT_PATH REQUIRED)
set(LOCKSTEP_FMT_ONLY "${PROJECT_BINARY_DIR}/fmt_only")
file(MAKE_DIRECTORY "${LOCKSTEP_FMT_ONLY}")
file(CREATE_LINK "${LOCKSTEP_TORCH_INCLUDE}/fmt" "${LOCKSTEP_FMT_ONLY}/fmt" SYMBOLIC)
