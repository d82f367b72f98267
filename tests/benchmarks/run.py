#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark programs one after the other and writes what they measured, and on what machine, to one JSON file.

    run.py FOLDER [--filter REGEX] [--json FILE]

FOLDER holds the built programs. A name such as `decode/type:half/s:1024` becomes {"what": "decode", "type": "half",
"s": 1024}, followed by its figures.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = ("attention", "latent", "eigen", "eigen_native", "cache", "text", "generate", "sampler")
# What Google Benchmark says of a run beside its counters.
OF_THE_RUN = {"name", "run_name", "run_type", "family_index", "per_family_instance_index", "repetitions", "repetition_index"}
OF_THE_RUN |= {"threads", "iterations", "real_time", "cpu_time", "time_unit"}
SETTINGS = {"iterations", "manual_time", "min_time", "real_time"}  # also in names


def processor():
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.*)$", cpuinfo.read_text(), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def number(text):
    return int(text) if text.isdecimal() else text


def figures(benchmark):
    what, *parts = benchmark["name"].split("/")
    keys = dict(part.split(":", 1) for part in parts if ":" in part)
    line = {"what": what} | {key: number(value) for key, value in keys.items() if key not in SETTINGS}
    return line | {key: float(f"{value:.4g}") for key, value in benchmark.items() if key not in OF_THE_RUN}


def run(program, pattern):
    """What a program measured; None if it has no benchmark of that name."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [program, f"--benchmark_out={out}", "--benchmark_out_format=json"]
        listed = subprocess.run([program, "--benchmark_list_tests", f"--benchmark_filter={pattern}"], capture_output=True, text=True)
        if not listed.stdout.strip():
            return None
        subprocess.run([*command, f"--benchmark_filter={pattern}"], check=True)
        return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--filter", default=".", help="run only what this is found in")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()

    context = {"processor": processor(), "cores": os.cpu_count()}
    lines = []
    for name in PROGRAMS:
        result = run(args.folder / f"benchmark_{name}", args.filter)
        if result is None:
            continue
        context["level"] = result["context"]["level"]
        context["caches"] = [f"L{cache['level']} {cache['type']} {cache['size'] >> 10} KiB" for cache in result["context"]["caches"]]
        lines += [figures(benchmark) for benchmark in result["benchmarks"]]
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        rows = ",\n".join("  " + json.dumps(line) for line in lines)
        args.json.write_text(f'{{"context": {json.dumps(context)},\n "benchmarks": [\n{rows}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
