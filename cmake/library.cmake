# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT

# Device code.
file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/mla/*.hip)
add_library(hipmla_kernels OBJECT ${kernel_sources})
hipmla_set_defaults(hipmla_kernels)
hipmla_compile_kernels(hipmla_kernels ${kernel_sources})
target_include_directories(hipmla_kernels PRIVATE ${kernels_include_dir})
target_link_libraries(hipmla_kernels PRIVATE hipmla_hip)

# Host code.
file(GLOB host_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cpp)
add_library(hipmla_host OBJECT ${host_sources})
hipmla_set_defaults(hipmla_host)
target_include_directories(hipmla_host PRIVATE ${src_include_dir})
target_link_libraries(hipmla_host PRIVATE hipmla_hip)
if(BUILD_SHARED_LIBS)
  target_compile_definitions(hipmla_host PRIVATE HIPMLA_SHARED)
endif()

set(hipmla_objects
    $<TARGET_OBJECTS:hipmla_kernels> $<TARGET_OBJECTS:hipmla_host> ${HIPMLA_RUNTIME_SOURCES})

add_library(hipmla ${hipmla_objects})
add_library(hipmla::hipmla ALIAS hipmla)
set_target_properties(hipmla PROPERTIES
  INSTALL_RPATH_USE_LINK_PATH ON
  LINKER_LANGUAGE CXX
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  VERSION ${PROJECT_VERSION})
target_compile_features(hipmla INTERFACE cxx_std_17)
target_include_directories(hipmla INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_link_libraries(hipmla PRIVATE ${HIPMLA_RUNTIME_LIBRARIES}
                                     $<BUILD_INTERFACE:hipmla_compile_options>)
if(BUILD_SHARED_LIBS)
  target_compile_definitions(hipmla INTERFACE HIPMLA_SHARED)
endif()
if(HIPMLA_PLATFORM STREQUAL "cpu")
  # Users allocate device memory with this platform's own HIP headers.
  target_include_directories(hipmla INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/platform/cpu>)
endif()

# The same objects for tests and tools, which may call and include everything, also what a shared library hides.
if(HIPMLA_BUILD_TESTS OR HIPMLA_BUILD_TOOLS)
  add_library(hipmla_internal STATIC ${hipmla_objects})
  set_target_properties(hipmla_internal PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(hipmla_internal
    INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(hipmla_internal INTERFACE hipmla_hip ${HIPMLA_RUNTIME_LIBRARIES})
endif()
