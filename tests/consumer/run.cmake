# SPDX-License-Identifier: Apache-2.0
# Configures, builds and runs the small project beside this file in the way that WAY names.
set(work "${WORK}/${WAY}")
file(REMOVE_RECURSE "${work}")
set(prefix "${work}/prefix")

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(NOT WAY MATCHES "^add_subdirectory")
  run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")
  # What was installed may move.
  file(RENAME "${prefix}" "${work}/moved")
  set(prefix "${work}/moved")
endif()

if(WAY STREQUAL "pkg_config")
  set(ENV{PKG_CONFIG_PATH} "${prefix}/share/pkgconfig")
  execute_process(COMMAND pkg-config --cflags --libs tinyllm OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set(project "${CMAKE_CURRENT_LIST_DIR}/project")
  run("${CXX}" -std=c++20 "${project}/main.cpp" "${project}/other.cpp" ${flags} -pthread -o "${work}/consumer")
  run("${work}/consumer")
  return()
endif()

set(configure "${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${CMAKE_CURRENT_LIST_DIR}/project" -B "${work}/build"
              "-DCMAKE_CXX_COMPILER=${CXX}" "-DTINYLLM_SOURCE=${SOURCE}" "-DCMAKE_PREFIX_PATH=${prefix}" "-DWAY=${WAY}")
if(WAY STREQUAL "other_version")
  execute_process(COMMAND ${configure} RESULT_VARIABLE result ERROR_VARIABLE output)
  if(result EQUAL 0 OR NOT output MATCHES "version \"99\"")
    message(FATAL_ERROR "version 99 was asked for and not refused: ${output}")
  endif()
  return()
endif()
run(${configure})
run("${CMAKE_COMMAND}" --build "${work}/build")
run("${work}/build/consumer")
