# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT

# What every target of this project is compiled with.
add_library(hipmla_compile_options INTERFACE)
target_compile_features(hipmla_compile_options INTERFACE cxx_std_17)
target_compile_options(hipmla_compile_options INTERFACE -Wall -Wextra)
if(HIPMLA_WERROR)
  target_compile_options(hipmla_compile_options INTERFACE
    $<IF:$<COMPILE_LANGUAGE:CUDA>,-Werror=all-warnings,-Werror>)
endif()

if(HIPMLA_SANITIZE)
  if(NOT HIPMLA_PLATFORM STREQUAL "cpu")
    message(FATAL_ERROR "HIPMLA_SANITIZE needs HIPMLA_PLATFORM=cpu")
  endif()
  list(JOIN HIPMLA_SANITIZE "," sanitizers)
  target_compile_options(hipmla_compile_options INTERFACE
    -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(hipmla_compile_options INTERFACE -fsanitize=${sanitizers})
endif()

# Position independent in static libraries too, so that they can go into somebody's shared one. Only what is marked
# HIPMLA_API is visible. No compiler extensions.
function(hipmla_set_defaults target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:hipmla_compile_options>)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    HIP_EXTENSIONS OFF
    HIP_STANDARD 17
    HIP_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
endfunction()
