# SPDX-License-Identifier: Apache-2.0
"""Building a test source against changed headers, running it, and saying what killed the change.

Everything happens in a temporary folder: each worker has a copy of include/ of its own; the tests' common headers are
precompiled once, without any header of the library.
"""
import collections
import dataclasses
import os
import pathlib
import queue
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

# What test sources and headers share, and what takes longest to read. TINYLLM_ASSERT throws, as in the real test build.
COMMON = """
#include "support/require.hpp"
#include <doctest/doctest.h>
#include <Eigen/Core>
#include <nlohmann/json.hpp>
#include <unicode/brkiter.h>
#include <unicode/ubrk.h>
#include <unicode/unistr.h>
#include <unicode/utext.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <ranges>
#include <regex>
#include <span>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>
"""

# Fewer random cases than in the test suite: a bug is found early or by another test.
ENVIRONMENT = {"TINYLLM_PROPERTY_CASES": "5000", **os.environ}
MEMORY_LIMIT = 2 << 30  # resident bytes: an endless loop that appends is stopped before it hurts


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How one run of one test source ended: "passed", "test" or "compiler", with the test's name."""

    kind: str
    detail: str = ""

    def __str__(self):
        if self.kind == "test":
            return f"killed by a test ({self.detail})"
        if self.kind == "compiler":
            return "killed by the compiler"
        return "SURVIVED"


PASSED = Verdict("passed")


class Toolchain:
    """The compiler, its flags, the precompiled header and the object with main."""

    def __init__(self, cxx, work):
        self.cxx = cxx
        self.work = work
        self.tests = shutil.copytree(TESTS, work / "tests")  # so that the tree may be edited meanwhile
        self.flags = ["-std=c++20", "-O0", "-w", "-pthread", f"-I{self.tests}", "-isystem", "/usr/include/eigen3",
                      f'-DTEST_DATA_DIR="{self.tests / "data"}"', "-DDOCTEST_CONFIG_SUPER_FAST_ASSERTS"]
        self.clang = "clang" in subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout
        if self.clang:
            self.flags += ["-Xclang", "-fpch-instantiate-templates"]
        header = work / "common.hpp"
        header.write_text(COMMON)
        self._must([*self.flags, "-x", "c++-header", header, "-o", work / ("common.pch" if self.clang else "common.hpp.gch")])
        self._must([*self.flags, "-c", self.tests / "support" / "main.cpp", "-o", work / "main.o"])

    def _must(self, arguments):
        subprocess.run([self.cxx, *map(str, arguments)], check=True)

    def _prefix(self):
        return ["-include-pch", str(self.work / "common.pch")] if self.clang else ["-include", str(self.work / "common.hpp")]

    def build(self, source, include, program):
        """Compiles and links one test source; what the compiler said if it refused, else None."""
        made = subprocess.run([self.cxx, *self.flags, f"-I{include}", *self._prefix(), str(self.tests / source),
                               str(self.work / "main.o"), "-licuuc", "-o", str(program)],
                              capture_output=True, text=True)
        return None if made.returncode == 0 else made.stderr


def failed_test(output):
    """The name of the first test case that doctest reports as failed."""
    name = ""
    for line in output.splitlines():
        if found := re.match(r"TEST CASE:\s+(.*)", line):
            name = found[1].strip()
        if name and re.search(r"\bERROR:", line):
            return name
    return name or "crash"


def no_core_files():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def resident(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def watch(process, limit):
    """Waits for a program; "time" or "memory" if it had to be stopped, else ""."""
    deadline = time.monotonic() + limit
    while True:
        try:
            process.wait(timeout=0.02)
            return ""
        except subprocess.TimeoutExpired:
            reason = "time" if time.monotonic() > deadline else "memory" if resident(process.pid) > MEMORY_LIMIT else ""
            if reason:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return reason


def name_filter(name):
    """For doctest: commas separate filters, `?` is any one character; a template's test case has its type behind the name."""
    name = name.replace(",", "?")
    return f"{name},{name}<*"


def run_program(program, only, limit):
    """Runs a doctest program up to its first failure."""
    chosen = [f"--test-case={name_filter(only)}"] if only else []
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen([str(program), "--abort-after=1", "--no-colors=true", *chosen], stdout=output,
                                   stderr=subprocess.STDOUT, preexec_fn=no_core_files, env=ENVIRONMENT)
        stopped = watch(process, limit)
        output.seek(0)
        text = output.read(1 << 20)
    if stopped:
        return Verdict("test", f"{failed_test(text)}, {stopped}" if "TEST CASE:" in text else stopped)
    if process.returncode != 0:
        return Verdict("test", failed_test(text))
    if only and re.search(r"test cases:\s+0 \|", text):
        raise SystemExit(f"no test case is named '{only}'")
    return PASSED


class Harness:
    """Runs test sources against changed headers, on several threads at once."""

    def __init__(self, cxx, jobs):
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")
        work = pathlib.Path(self._folder.name)
        self.tools = Toolchain(cxx, work)
        self.limits = {}
        self._kills = collections.Counter()  # by source and header: what killed before is tried first
        self._copies = queue.SimpleQueue()
        for i in range(jobs):
            shutil.copytree(ROOT / "include", work / str(i) / "include")
            self._copies.put(work / str(i))

    def close(self):
        self._folder.cleanup()

    def try_change(self, header, text, runs):
        """The verdict on include/`header` with this text: `runs` are (source, test case or None), tried until one kills it."""
        copy = self._copies.get()
        changed = copy / "include" / header
        original = changed.read_text()
        try:
            changed.write_text(text)
            return self._first_kill(copy, header, runs)
        finally:
            changed.write_text(original)
            self._copies.put(copy)

    def _first_kill(self, copy, header, runs):
        built = None
        for source, only in sorted(runs, key=lambda run: -self._kills[run[0], header]):
            if source != built and self.tools.build(source, copy / "include", copy / "program") is not None:
                return Verdict("compiler")
            built = source
            verdict = run_program(copy / "program", only, self.limits.get(source, 60))
            if verdict is not PASSED:
                self._kills[source, header] += 1
                return verdict
        return PASSED

    def check_unchanged(self, source):
        """Builds and runs a source as it is: an error message, or None; its time sets the limit for changed runs."""
        copy = self._copies.get()
        try:
            complaint = self.tools.build(source, copy / "include", copy / "program")
            if complaint is not None:
                return complaint
            started = time.monotonic()
            verdict = run_program(copy / "program", None, 600)  # compiled without optimisation, on whatever machine
            self.limits[source] = 3 + 10 * (time.monotonic() - started)
            return None if verdict is PASSED else verdict.detail
        finally:
            self._copies.put(copy)
