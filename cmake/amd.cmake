# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT

# The AMD platform: kernels are HIP, rocPRIM gives block and wave primitives.
find_path(hip_include_dir hip/hip_version.h
  HINTS $ENV{ROCM_PATH} /opt/rocm PATH_SUFFIXES include REQUIRED NO_CACHE)
cmake_path(SET hip_include_dir NORMALIZE ${hip_include_dir}/.)
cmake_path(GET hip_include_dir PARENT_PATH hip_include_dir)  # no slash at the end
file(STRINGS ${hip_include_dir}/hip/hip_version.h hip_version_lines REGEX "define HIP_VERSION_M[A-Z]+ ")
string(REGEX MATCHALL "[0-9]+" hip_version "${hip_version_lines}")
list(JOIN hip_version "." hip_version)

# hipmla_choose_amd_targets() sets HIPMLA_AMD_TARGETS unless the user did.
function(hipmla_choose_amd_targets)
  if(HIPMLA_AMD_TARGETS)
    return()
  endif()
  execute_process(COMMAND ${HIPMLA_DEVICE_COMPILER} --target=amdgcn-amd-amdhsa --print-supported-cpus
    OUTPUT_VARIABLE known_targets ERROR_VARIABLE known_targets)
  set(targets gfx90a gfx942)
  if(known_targets MATCHES "gfx950")
    list(APPEND targets gfx950)
  endif()
  set(HIPMLA_AMD_TARGETS ${targets} PARENT_SCOPE)
endfunction()

# hipmla_find_llvm_tool(<variable> <name>) finds a tool that belongs to the device compiler.
function(hipmla_find_llvm_tool variable name)
  execute_process(COMMAND ${HIPMLA_DEVICE_COMPILER} -print-prog-name=${name}
    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${path}")
    message(FATAL_ERROR "${name} that belongs to ${HIPMLA_DEVICE_COMPILER} not found")
  endif()
  set(${variable} ${path} PARENT_SCOPE)
endfunction()

if(hip_include_dir STREQUAL "/usr/include" AND hip_version VERSION_EQUAL 5.2)
  include(cmake/debian_hip5.cmake)
else()
  cmake_path(GET hip_include_dir PARENT_PATH rocm_root)
  list(APPEND CMAKE_PREFIX_PATH ${rocm_root})
  if(NOT DEFINED ENV{HIPCXX})
    find_program(CMAKE_HIP_COMPILER NAMES clang++ amdclang++ DOC "HIP compiler"
      PATHS ${rocm_root}/lib/llvm/bin ${rocm_root}/llvm/bin NO_DEFAULT_PATH)
  endif()
  if(NOT DEFINED CMAKE_HIP_ARCHITECTURES)
    set(CMAKE_HIP_ARCHITECTURES gfx942)  # for CMake's own checks, which need one
  endif()
  enable_language(HIP)
  set(HIPMLA_DEVICE_COMPILER ${CMAKE_HIP_COMPILER})
  hipmla_choose_amd_targets()

  set(GPU_TARGETS ${HIPMLA_AMD_TARGETS})  # else the package looks for devices
  find_package(hip REQUIRED CONFIG)
  find_package(rocprim REQUIRED CONFIG)
  target_link_libraries(hipmla_hip INTERFACE hip::host)
  set(HIPMLA_RUNTIME_LIBRARIES hip::host)
  set(HIPMLA_FIND_DEPENDENCIES "find_dependency(hip CONFIG PATHS \$ENV{ROCM_PATH} /opt/rocm)")

  function(hipmla_compile_kernels target)
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE HIP COMPILE_OPTIONS -O3)
    set_target_properties(${target} PROPERTIES
      HIP_ARCHITECTURES "${HIPMLA_AMD_TARGETS}" LINKER_LANGUAGE CXX)
    target_link_libraries(${target} PRIVATE roc::rocprim)
  endfunction()
endif()

list(JOIN HIPMLA_AMD_TARGETS " " targets)
message(STATUS "HIP ${hip_version}, kernels for ${targets}")
