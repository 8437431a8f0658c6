# Removes the folder of this machine's torch from the program that links it. cpack runs this file before it packs.
file(RPATH_REMOVE FILE "${CPACK_TEMPORARY_DIRECTORY}/usr/libexec/lockstep/lockstep_selftest")
