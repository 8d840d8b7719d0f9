# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT

# The CPU platform: kernels are C++ for the HIP-on-CPU runtime in platform/cpu, which becomes part of the library.
find_package(Boost 1.66 REQUIRED CONFIG COMPONENTS context)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

target_include_directories(hipmla_hip INTERFACE ${PROJECT_SOURCE_DIR}/platform/cpu)
if(HIPMLA_CPU_DEVICE STREQUAL "sm_90")
  target_compile_definitions(hipmla_hip INTERFACE HIPMLA_CPU_SM90)
elseif(NOT HIPMLA_CPU_DEVICE STREQUAL "gfx942")
  message(FATAL_ERROR "HIPMLA_CPU_DEVICE is \"${HIPMLA_CPU_DEVICE}\"; must be gfx942 or sm_90")
endif()

# Kernels and runtime take most of the time of every test, so they are optimized in Debug builds as well; device
# asserts are on in Release builds as well. Without contraction, results do not depend on the host compiler.
set(device_code_options -O3 -UNDEBUG -ffp-contract=off -Wno-unknown-pragmas)

file(GLOB runtime_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/platform/cpu/src/*.cpp)
add_library(hipmla_hip_cpu OBJECT ${runtime_sources})
hipmla_set_defaults(hipmla_hip_cpu)
# Its hip* functions are called by users of a shared library too.
set_target_properties(hipmla_hip_cpu PROPERTIES CXX_VISIBILITY_PRESET default)
target_compile_options(hipmla_hip_cpu PRIVATE ${device_code_options})
target_link_libraries(hipmla_hip_cpu PRIVATE hipmla_hip Boost::context Threads::Threads)

set(HIPMLA_RUNTIME_SOURCES $<TARGET_OBJECTS:hipmla_hip_cpu>)
set(HIPMLA_RUNTIME_LIBRARIES Boost::context Threads::Threads)
set(HIPMLA_FIND_DEPENDENCIES
    "find_dependency(Boost 1.66 CONFIG COMPONENTS context)\nfind_dependency(Threads)")

function(hipmla_compile_kernels target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${device_code_options}")
endfunction()
