# Finds the torch of find_package(lockstep), whose files are in _lockstep_prefix, and sets _lockstep_torch_found to its minor
# version. Refuses a missing torch, and one whose minor version is not in the list lockstep_TORCH_SERIES: then the
# variable is empty.
set(_lockstep_torch_hints "")
if(NOT Torch_DIR)
  foreach(_lockstep_python "${_lockstep_prefix}/bin/python3" python3)
    execute_process(COMMAND "${_lockstep_python}" -c
        "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _lockstep_torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
      RESULT_VARIABLE _lockstep_python_status)
    if(_lockstep_python_status STREQUAL "0")
      list(APPEND _lockstep_torch_hints "${_lockstep_torch_folder}/share/cmake/Torch")
    endif()
  endforeach()
endif()
include("${CMAKE_CURRENT_LIST_DIR}/lockstepCudart.cmake")
find_package(Torch QUIET HINTS ${_lockstep_torch_hints})

list(JOIN lockstep_TORCH_SERIES " or " _lockstep_torch_expected)
set(_lockstep_torch_found "")
if(NOT Torch_FOUND)
  set(lockstep_FOUND FALSE)
  set(lockstep_NOT_FOUND_MESSAGE
    "[lockstep] torch is missing; expected torch ${_lockstep_torch_expected}; activate the Python environment that \
contains it, or set Torch_DIR to its folder torch/share/cmake/Torch")
  return()
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _lockstep_torch_found "${Torch_VERSION}")
if(NOT _lockstep_torch_found IN_LIST lockstep_TORCH_SERIES)
  set(lockstep_FOUND FALSE)
  set(lockstep_NOT_FOUND_MESSAGE
    "[lockstep] this build of Lockstep needs torch ${_lockstep_torch_expected}; got torch ${Torch_VERSION} in \
${Torch_DIR}; set another Torch_DIR, or build Lockstep with that torch")
  set(_lockstep_torch_found "")
endif()
