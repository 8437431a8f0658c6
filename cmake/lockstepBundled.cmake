# Defines the libraries that a Python wheel contains for lockstepConfig.cmake.
get_filename_component(_lockstep_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET lockstep::json)
  # Programs need this version, since nlohmann-json's names contain it.
  add_library(lockstep::json INTERFACE IMPORTED)
  target_include_directories(lockstep::json INTERFACE "${_lockstep_prefix}/include/lockstep/third_party")
  add_library(lockstep::yaml_cpp STATIC IMPORTED)
  set_target_properties(lockstep::yaml_cpp PROPERTIES IMPORTED_LOCATION "${_lockstep_prefix}/lib/lockstep/libyaml-cpp.a")
  add_library(lockstep::zlib STATIC IMPORTED)
  set_target_properties(lockstep::zlib PROPERTIES IMPORTED_LOCATION "${_lockstep_prefix}/lib/lockstep/libz.a")
endif()
