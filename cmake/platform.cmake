# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT

# Sets up HIPMLA_PLATFORM. Each platform file defines
#
#   hipmla_hip                         what host code needs to include <hip/hip_runtime_api.h> and to link a HIP runtime
#   hipmla_compile_kernels(<target> <source>...)   makes sources of `target` that contain kernels compile as such
#   HIPMLA_RUNTIME_SOURCES             objects that become part of the library, if any
#   HIPMLA_RUNTIME_LIBRARIES           what the library links
#   HIPMLA_FIND_DEPENDENCIES           commands that find these for a user of the installed library
#
# To add a platform: write cmake/<platform>.cmake, add its name here and in CMakeLists.txt.
set(platforms cpu amd nvidia)
if(NOT HIPMLA_PLATFORM IN_LIST platforms)
  list(JOIN platforms " or " platforms)
  message(FATAL_ERROR "HIPMLA_PLATFORM is \"${HIPMLA_PLATFORM}\"; must be ${platforms}")
endif()

add_library(hipmla_hip INTERFACE)
string(TOUPPER ${HIPMLA_PLATFORM} platform_macro)
target_compile_definitions(hipmla_hip INTERFACE HIPMLA_PLATFORM_${platform_macro})

include(cmake/${HIPMLA_PLATFORM}.cmake)
