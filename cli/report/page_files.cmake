# The page of `lockstep report`: its HTML, CSS and JavaScript become strings of the program.
foreach(name page.html page.css page_charts.js page.js)
  set(source "${CMAKE_CURRENT_SOURCE_DIR}/report/${name}")
  string(REPLACE "." "_" variable ${name})
  file(READ "${source}" ${variable})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
endforeach()
set(page_files "${CMAKE_CURRENT_BINARY_DIR}/page_files.cpp")
configure_file(report/page_files.cpp.in "${page_files}" @ONLY)
