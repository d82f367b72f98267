// SPDX-License-Identifier: Apache-2.0
// The version of tinyllm. CMake reads these three lines, so they are the only place where it is written.
#pragma once

#define TINYLLM_VERSION_MAJOR 0
#define TINYLLM_VERSION_MINOR 1
#define TINYLLM_VERSION_PATCH 0
