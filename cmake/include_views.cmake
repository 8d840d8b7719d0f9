# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT

# The dependency rule, as include paths. A view is a folder of links to the headers that one part may include:
#
#   kernels         include/hipmla/types.h, kernels/
#   src             include/, src/, three headers of kernels/mla
#   mla_reference   include/, tests/

# hipmla_include_view(<variable> <path in the source tree>...) makes a view and stores its path.
function(hipmla_include_view variable)
  string(REGEX REPLACE "_include_dir$" "" name ${variable})
  set(view ${PROJECT_BINARY_DIR}/include_views/${name})
  foreach(path IN LISTS ARGN)
    string(REGEX REPLACE "^include/" "" link ${path})
    cmake_path(GET link PARENT_PATH parent)
    file(MAKE_DIRECTORY ${view}/${parent})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${path} ${view}/${link} SYMBOLIC)
  endforeach()
  set(${variable} ${view} PARENT_SCOPE)
endfunction()

hipmla_include_view(kernels_include_dir include/hipmla/types.h kernels)
hipmla_include_view(src_include_dir
  include/hipmla
  src
  kernels/mla/launch.h
  kernels/mla/params.h
  kernels/mla/stage1_configs.h)
hipmla_include_view(mla_reference_include_dir include/hipmla tests)
