# SPDX-License-Identifier: Apache-2.0
# Installs the headers with a CMake package and a pkg-config file, both relocatable.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/tinyllm")

install(TARGETS tinyllm EXPORT tinyllmTargets FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT tinyllmTargets NAMESPACE tinyllm:: DESTINATION "${package_dir}")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/tinyllmConfig.cmake.in" "${PROJECT_BINARY_DIR}/tinyllmConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/tinyllmConfigVersion.cmake" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/tinyllmConfig.cmake" "${PROJECT_BINARY_DIR}/tinyllmConfigVersion.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/TinyllmCompiled.cmake" "${PROJECT_SOURCE_DIR}/cmake/kernels.cpp.in"
        DESTINATION "${package_dir}")

configure_file("${PROJECT_SOURCE_DIR}/cmake/tinyllm.pc.in" "${PROJECT_BINARY_DIR}/tinyllm.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/tinyllm.pc" DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig")
