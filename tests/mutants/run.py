#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts bugs into copies of the library's headers and tells which of them the tests see.

    run.py                          the named bugs of named/*.toml: each must be killed by a test
    run.py --list                   what they are
    run.py --only 'stop_*'          some of them
    run.py --sweep [--sample 200]   mechanical changes: the score, and what survived

Ends with "N passed, N failed"; a named bug passes if a test kills it. Needs what the tests need, and clang++ or g++.
"""
import argparse
import concurrent.futures
import os
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True

import named  # noqa: E402
import sweep  # noqa: E402
from harness import Harness  # noqa: E402


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at once")
    parser.add_argument("--cxx", default=shutil.which("clang++") or "g++", help="clang++ takes half as long as g++")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="named bugs that match")
    parser.add_argument("--list", action="store_true", help="say what there is and run nothing")
    parser.add_argument("--sweep", action="store_true", help="mechanical changes instead of the named bugs")
    parser.add_argument("--files", nargs="+", default=["*"], metavar="PATTERN", help="headers below include/tinyllm to sweep")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of the changes, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=float, default=90, metavar="PERCENT", help="score below which a sweep fails")
    return parser.parse_args()


def check_unchanged(harness, pool, sources):
    """The tests must pass before anything is changed."""
    for source, complaint in zip(sources, pool.map(harness.check_unchanged, sources)):
        if complaint is not None:
            print(complaint)
            sys.exit(f"{source} fails without any change")
    print(f"{len(sources)} test sources pass unchanged", flush=True)


def main():
    chosen = options()
    changes = sweep.collect(chosen) if chosen.sweep else named.collect(chosen.only)
    if chosen.list:
        for change in changes:
            print(change.describe())
        print(len(changes), "in all")
        return 0
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the temporary folder goes
    harness = Harness(chosen.cxx, chosen.jobs)
    try:
        with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
            check_unchanged(harness, pool, sorted({source for change in changes for source, _ in change.runs}))
            verdicts = pool.map(lambda change: harness.try_change(change.header, change.text, change.runs), changes)
            report = sweep.report if chosen.sweep else named.report
            good = report(changes, verdicts, chosen)
    finally:
        harness.close()
    print(f"{time.monotonic() - started:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
