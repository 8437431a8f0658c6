# Settings of a Python wheel. pip cannot install Debian's libraries, so the wheel contains copies of them. Torch is in the
# folder of the environment's Python. pyproject.toml sets LOCKSTEP_WHEEL.
include(GNUInstallDirs)

if(NOT DEFINED SKBUILD)
  message(FATAL_ERROR "[lockstep] LOCKSTEP_WHEEL is for scikit-build-core, which pip runs; got it without SKBUILD; "
    "run pip wheel . instead, or leave LOCKSTEP_WHEEL out")
endif()

# The metadata of the wheel require the torch of torch_requirement.py.
execute_process(COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/torch_requirement.py"
  OUTPUT_VARIABLE lockstep_required_torch OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT Torch_VERSION MATCHES "^${lockstep_required_torch}(\\.|$)")
  message(FATAL_ERROR "[lockstep] the wheel would be compiled with another torch than it requires; got torch "
    "${Torch_VERSION} in ${Torch_DIR}, expected ${lockstep_required_torch}.x of ${Python_EXECUTABLE}; set the "
    "environment variable Torch_DIR, which both read, instead of CMake's")
endif()

# Each Python that torch supports has its own folder, and the wheel serves all of them.
set(LOCKSTEP_TORCH_RPATH "")
foreach(minor RANGE 10 15)
  list(APPEND LOCKSTEP_TORCH_RPATH "$ORIGIN/../../lib/python3.${minor}/site-packages/torch/lib")
endforeach()

# lockstep_static_copy(VARIABLE FILE TARGET PACKAGE): sets VARIABLE to a link item for the static library FILE. The
# installed one is a copy in lib/lockstep. TARGET has the headers, PACKAGE is the name in Debian.
function(lockstep_static_copy variable file target package)
  find_library(${variable}_STATIC NAMES "${file}")
  if(NOT ${variable}_STATIC)
    message(FATAL_ERROR "[lockstep] ${file} is missing; a wheel contains a copy of it; install Debian's ${package}, or "
      "set ${variable}_STATIC to the file")
  endif()
  string(TOLOWER "${variable}" imported)
  add_library(${imported} STATIC IMPORTED GLOBAL)
  set_target_properties(${imported} PROPERTIES IMPORTED_LOCATION "${${variable}_STATIC}"
    INTERFACE_INCLUDE_DIRECTORIES "$<TARGET_PROPERTY:${target},INTERFACE_INCLUDE_DIRECTORIES>")
  set(folder "${CMAKE_INSTALL_LIBDIR}/lockstep")
  install(FILES "${${variable}_STATIC}" DESTINATION "${folder}" RENAME "${file}")
  set(${variable} "$<BUILD_INTERFACE:${imported}>" "$<INSTALL_INTERFACE:$<INSTALL_PREFIX>/${folder}/${file}>" PARENT_SCOPE)
endfunction()

lockstep_static_copy(LOCKSTEP_YAML_CPP libyaml-cpp.a yaml-cpp libyaml-cpp-dev)
lockstep_static_copy(LOCKSTEP_ZLIB libz.a ZLIB::ZLIB zlib1g-dev)

# The headers of Lockstep include nlohmann-json's, whose names contain their version. So programs need the same one.
set(LOCKSTEP_JSON "$<BUILD_INTERFACE:nlohmann_json::nlohmann_json>")
set(LOCKSTEP_JSON_INSTALLED "${CMAKE_INSTALL_INCLUDEDIR}/lockstep/third_party")
get_target_property(lockstep_json_headers nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
install(DIRECTORY "${lockstep_json_headers}/nlohmann" DESTINATION "${LOCKSTEP_JSON_INSTALLED}")
