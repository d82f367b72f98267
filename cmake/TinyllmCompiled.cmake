# SPDX-License-Identifier: Apache-2.0
# tinyllm::compiled: tinyllm::tinyllm with its attention kernels compiled once, for programs of many files. It is compiled in the
# project that links it, with that project's flags, whether tinyllm is a subfolder or a package; built only if something links it.
if(NOT TARGET tinyllm_compiled)
  add_library(tinyllm_compiled STATIC EXCLUDE_FROM_ALL)
  add_library(tinyllm::compiled ALIAS tinyllm_compiled)
  foreach(dtype float Eigen::half Eigen::bfloat16 std::int8_t)
    string(REGEX REPLACE ".*::" "" name "${dtype}")
    set(source "${CMAKE_CURRENT_BINARY_DIR}/tinyllm_kernels_${name}.cpp")
    configure_file("${CMAKE_CURRENT_LIST_DIR}/kernels.cpp.in" "${source}" @ONLY)
    target_sources(tinyllm_compiled PRIVATE "${source}")
  endforeach()
  target_link_libraries(tinyllm_compiled PUBLIC tinyllm::tinyllm)
  target_compile_definitions(tinyllm_compiled PUBLIC TINYLLM_COMPILED)
  set_target_properties(tinyllm_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)  # for shared libraries that link it
endif()
