# Writes the commit of SOURCE to HEADER; empty outside of git. Usage: cmake -DSOURCE=... -DHEADER=... -P FILE
execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "")
endif()
file(WRITE "${HEADER}" "#pragma once\n#define LOCKSTEP_COMMIT \"${commit}\"\n")
