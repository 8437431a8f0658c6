# cmake -DSOURCE=... -DHEADER=... -P: writes down which commit SOURCE is, nothing where it is none.
execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "")
endif()
file(WRITE "${HEADER}" "#pragma once\n#define LOCKSTEP_COMMIT \"${commit}\"\n")
