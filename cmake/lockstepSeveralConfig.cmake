# find_package(lockstep) of a wheel with libraries for several minor versions of torch: finds torch as lockstepConfig.cmake
# of each of them does, and includes the one for it.
get_filename_component(_lockstep_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(_lockstep_several "${_lockstep_prefix}/lib/lockstep/torch-")
file(GLOB lockstep_TORCH_SERIES "${_lockstep_several}*")
list(TRANSFORM lockstep_TORCH_SERIES REPLACE ".*/torch-" "")
list(SORT lockstep_TORCH_SERIES COMPARE NATURAL)
include("${CMAKE_CURRENT_LIST_DIR}/lockstepFindTorch.cmake")
if(_lockstep_torch_found)
  include("${_lockstep_several}${_lockstep_torch_found}/cmake/lockstep/lockstepConfig.cmake")
endif()
