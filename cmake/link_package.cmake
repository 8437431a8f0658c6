# Links the files and folders of FROM into the folder TO. The links are relative, so that the source tree can be moved.
file(GLOB entries RELATIVE "${FROM}" "${FROM}/*")
list(REMOVE_ITEM entries __pycache__)
file(RELATIVE_PATH from "${TO}" "${FROM}")
foreach(entry IN LISTS entries)
  file(CREATE_LINK "${from}/${entry}" "${TO}/${entry}" SYMBOLIC)
endforeach()
# Links to files that were removed.
file(GLOB links RELATIVE "${TO}" "${TO}/*")
foreach(link IN LISTS links)
  if(IS_SYMLINK "${TO}/${link}" AND NOT link IN_LIST entries)
    file(REMOVE "${TO}/${link}")
  endif()
endforeach()
