# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT

# Builds for AMD with the HIP 5.2 that Debian 12 packages and a clang that is years younger: what that takes is here
# and nowhere else. ROCm 6 and later do not come here.
#
#   packages   clang-22 clang-tools-22 lld-22 (or -19: no gfx950), libamdhip64-dev rocm-device-libs librocprim-dev;
#              llvm-22 for the tests
#   configure  cmake -DHIPMLA_PLATFORM=amd -DCMAKE_CXX_COMPILER=clang++-22
#
# - CMake's HIP language does not find this HIP's packages, which pass flags that younger compilers lack besides:
#   kernels are compiled as CXX with -x hip, and the runtime is a plain library.
# - The device libraries know processors up to gfx940. What they miss for others is one constant each.
# - The runtime loads code objects of version 4 at most.
# - The headers use names that compilers have since dropped: debian_hip5.h has them.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 19)
  message(FATAL_ERROR "HIP ${hip_version} of Debian needs a clang, 19 or later, as the C++ compiler: configure with "
                      "-DCMAKE_CXX_COMPILER=clang++-22")
endif()
find_path(rocprim_include_dir rocprim/rocprim.hpp REQUIRED NO_CACHE)
set(HIPMLA_DEVICE_COMPILER ${CMAKE_CXX_COMPILER})
hipmla_choose_amd_targets()

# Device libraries: Debian's, and the constant __oclc_ISA_version for newer processors.
find_path(device_libs_dir ockl.bc
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/amdgcn/bitcode REQUIRED NO_CACHE NO_DEFAULT_PATH)
set(our_device_libs_dir ${PROJECT_BINARY_DIR}/device_libs)
file(MAKE_DIRECTORY ${our_device_libs_dir})
file(GLOB device_libs ${device_libs_dir}/*.bc)
foreach(device_lib IN LISTS device_libs)
  cmake_path(GET device_lib FILENAME name)
  file(CREATE_LINK ${device_lib} ${our_device_libs_dir}/${name} SYMBOLIC)
endforeach()
foreach(processor 942 950)
  set(name ${our_device_libs_dir}/oclc_isa_version_${processor})
  math(EXPR isa_version "${processor} / 10 * 100 + ${processor} % 10")  # 942 is 9402
  file(CONFIGURE OUTPUT ${name}.c CONTENT
       "const __attribute__((address_space(4))) int __oclc_ISA_version = @isa_version@;\n" @ONLY)
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} --target=amdgcn-amd-amdhsa -nogpulib -mcode-object-version=4
            -emit-llvm -x c -c ${name}.c -o ${name}.bc
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()

set(kernel_options
    -x hip -O3
    --rocm-path=/usr
    --rocm-device-lib-path=${our_device_libs_dir}
    -mcode-object-version=4
    -include ${PROJECT_SOURCE_DIR}/cmake/debian_hip5.h)
foreach(target IN LISTS HIPMLA_AMD_TARGETS)
  list(APPEND kernel_options --offload-arch=${target})
endforeach()

target_compile_definitions(hipmla_hip INTERFACE __HIP_PLATFORM_AMD__)
target_link_libraries(hipmla_hip INTERFACE amdhip64)
set(HIPMLA_RUNTIME_LIBRARIES amdhip64)

function(hipmla_compile_kernels target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${kernel_options}")
endfunction()

# Debian's standard library uses what the compiler calls deprecated.
target_compile_options(hipmla_compile_options INTERFACE -Wno-deprecated-declarations)
