# SPDX-FileCopyrightText: hipmla contributors
# SPDX-License-Identifier: MIT
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hipmla)
install(TARGETS hipmla EXPORT hipmla_targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/hipmla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(HIPMLA_PLATFORM STREQUAL "cpu")
  # In a folder of their own, so that they hide another HIP only from those who link this library.
  set(cpu_include_dir ${CMAKE_INSTALL_INCLUDEDIR}/hipmla_cpu)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/platform/cpu/hip ${PROJECT_SOURCE_DIR}/platform/cpu/hip_cpu
          DESTINATION ${cpu_include_dir} FILES_MATCHING PATTERN "*.h")
  target_include_directories(hipmla INTERFACE $<INSTALL_INTERFACE:${cpu_include_dir}>)
endif()

install(EXPORT hipmla_targets NAMESPACE hipmla:: DESTINATION ${config_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hipmla-config.cmake.in
  ${PROJECT_BINARY_DIR}/hipmla-config.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hipmla-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hipmla-config.cmake
              ${PROJECT_BINARY_DIR}/hipmla-config-version.cmake
        DESTINATION ${config_dir})
