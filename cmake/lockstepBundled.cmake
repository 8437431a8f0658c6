# Defines the libraries that a Python wheel contains, for lockstepConfig.cmake, which sets _lockstep_prefix and
# _lockstep_bundled_folder. Programs link the static ones. Shared libraries link the shared ones, because Debian's static
# ones are not compiled with -fPIC.
if(NOT TARGET lockstep::json)
  # Programs need this version, since nlohmann-json's names contain it.
  add_library(lockstep::json INTERFACE IMPORTED)
  target_include_directories(lockstep::json INTERFACE "${_lockstep_prefix}/include/lockstep/third_party")
  set(_lockstep_libraries yaml_cpp zlib)
  set(_lockstep_files libyaml-cpp libz)
  foreach(_lockstep_library _lockstep_file IN ZIP_LISTS _lockstep_libraries _lockstep_files)
    file(GLOB _lockstep_shared "${_lockstep_bundled_folder}/${_lockstep_file}.so.*")
    add_library(lockstep::${_lockstep_library}_shared SHARED IMPORTED)
    set_target_properties(lockstep::${_lockstep_library}_shared PROPERTIES IMPORTED_LOCATION "${_lockstep_shared}")
    add_library(lockstep::${_lockstep_library} INTERFACE IMPORTED)
    target_link_libraries(lockstep::${_lockstep_library} INTERFACE
      "$<IF:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>,\
${_lockstep_bundled_folder}/${_lockstep_file}.a,lockstep::${_lockstep_library}_shared>")
  endforeach()
endif()
