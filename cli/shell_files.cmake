# Completion scripts and the manual page, which the program prints and an installation contains.
include(GNUInstallDirs)
set(shell_dir "${CMAKE_CURRENT_BINARY_DIR}/shell")
file(MAKE_DIRECTORY "${shell_dir}")

# lockstep_shell_file(NAME FOLDER WORDS...): installs the output of `lockstep WORDS...` as FOLDER/NAME.
function(lockstep_shell_file name folder)
  set(file "${shell_dir}/${name}")
  add_custom_command(OUTPUT "${file}"
    COMMAND lockstep_cli ${ARGN} > "${file}" DEPENDS lockstep_cli VERBATIM)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_SHELL_FILES "${file}")
  install(FILES "${file}" DESTINATION "${folder}")
endfunction()

lockstep_shell_file(lockstep "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" completion bash)
lockstep_shell_file(_lockstep "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" completion zsh)
lockstep_shell_file(lockstep.fish "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" completion fish)
lockstep_shell_file(lockstep.1 "${CMAKE_INSTALL_MANDIR}/man1" man)
get_property(shell_files GLOBAL PROPERTY LOCKSTEP_SHELL_FILES)
add_custom_target(lockstep_shell_files ALL DEPENDS ${shell_files})
