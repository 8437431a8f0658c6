# Defines torch::cudart, so that the CMake package of a torch for CUDA, such as PyPI's, does not search for the complete
# CUDA toolkit. The target is empty if CMake finds no toolkit. A project that has enabled the language CUDA gets torch's
# own search.
get_property(_lockstep_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(NOT TARGET torch::cudart AND NOT "CUDA" IN_LIST _lockstep_languages)
  add_library(torch::cudart INTERFACE IMPORTED)
  if(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
    set_target_properties(torch::cudart PROPERTIES IMPORTED_GLOBAL TRUE)
  endif()
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    target_link_libraries(torch::cudart INTERFACE CUDA::cudart)
  endif()
endif()
