# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end checks share: running the program and counting what holds.

    checks = Checks()
    result = run(generate, "--prompt", "Hello")
    checks.that("hello ends well", result.code == 0, result.stderr)
    sys.exit(checks.exit_code())
"""

import json
import resource
import subprocess
from dataclasses import dataclass

MEMORY_LIMIT = 1500 * 1000 * 1000


@dataclass
class Result:
    code: int  # negative: the signal that ended it
    stdout: bytes
    stderr: bytes

    def json(self):
        return json.loads(self.stdout)

    def is_one_line_refusal(self):
        """Bad input: exit code 2, one line that says why, and nothing else."""
        lines = self.stderr.decode(errors="replace").splitlines()
        return self.code == 2 and len(lines) == 1 and lines[0].startswith("generate: ") and not self.stdout


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(program, *arguments, stdin=b"", limited=False, timeout=300, stdout=subprocess.PIPE):
    """Runs the program to its end. `limited`: a giant allocation fails instead of passing unseen."""
    done = subprocess.run(
        [program, *arguments],
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=timeout,
        preexec_fn=limit_memory if limited else None,
    )
    return Result(done.returncode, done.stdout or b"", done.stderr)


class Checks:
    """Prints a line for each failure, and one for each success unless it is told to be quiet about it."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def that(self, name, holds, detail="", quiet=False):
        if holds:
            self.passed += 1
            if not quiet:
                print(f"ok     {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAILED {name}: {str(detail)[:600]}", flush=True)
        return bool(holds)

    def equal(self, name, actual, expected):
        return self.that(name, actual == expected, f"{actual!r} instead of {expected!r}")

    def exit_code(self):
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 0 if self.failed == 0 and self.passed > 0 else 1
