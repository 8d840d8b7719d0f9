# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT

# The NVIDIA platform: the same kernels through nvcc, HIP's names on the CUDA runtime (platform/nvidia).
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

target_include_directories(hipmla_hip INTERFACE ${PROJECT_SOURCE_DIR}/platform/nvidia)
target_link_libraries(hipmla_hip INTERFACE CUDA::cudart)
set(HIPMLA_RUNTIME_LIBRARIES CUDA::cudart)
set(HIPMLA_FIND_DEPENDENCIES "find_dependency(CUDAToolkit)")

# Warning 177: names that only some rows of the table use.
function(hipmla_compile_kernels target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CUDA
    COMPILE_OPTIONS "-x;cu;--expt-relaxed-constexpr;-O3;-diag-suppress=177")
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 17)
endfunction()
