#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what the build and the tests need on Debian 12, Ubuntu 24.04 or later. More packages may be named as arguments.
set -eu
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
export DEBIAN_FRONTEND=noninteractive
as_root apt-get update -qq
as_root apt-get install -y -qq --no-install-recommends g++ cmake ninja-build pkg-config python3 \
  libeigen3-dev libicu-dev doctest-dev libcli11-dev nlohmann-json3-dev "$@"
