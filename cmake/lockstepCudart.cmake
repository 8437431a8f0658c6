# Defines torch::cudart, which is CUDA's library and headers, or nothing on a machine without the CUDA toolkit. Else the
# CMake package of a torch for CUDA, such as PyPI's, would require the complete toolkit, also of a project without CUDA
# sources. One with CUDA sources enables the language CUDA, and gets torch's own search.
if(NOT TARGET torch::cudart AND NOT CMAKE_CUDA_COMPILER)
  add_library(torch::cudart INTERFACE IMPORTED)
  if(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
    set_target_properties(torch::cudart PROPERTIES IMPORTED_GLOBAL TRUE)
  endif()
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    target_link_libraries(torch::cudart INTERFACE CUDA::cudart)
  endif()
endif()
