# SPDX-License-Identifier: Apache-2.0
"""The named bugs: one file each in named/, with what it is, the exact text it replaces, and the test that must see it."""
import dataclasses
import fnmatch
import pathlib
import tomllib

from harness import ROOT

FOLDER = pathlib.Path(__file__).resolve().parent / "named"


@dataclasses.dataclass(frozen=True)
class NamedBug:
    name: str
    bug: str
    rule: str
    header: str  # below include/
    text: str    # of the header with the bug in it
    test: str    # source below tests/
    red: str     # the test case that must fail

    @property
    def runs(self):
        # The rest of the program too, so that a bug which another test sees is reported as that.
        return [(self.test, self.red), (self.test, None)]

    def describe(self):
        return f"{self.name}: {self.bug} [{self.rule}] -> {self.red}"


def apply(name, header, changes):
    """The header with the changes made; each old text must occur exactly once."""
    text = (ROOT / "include" / header).read_text()
    for change in changes:
        found = text.count(change["old"])
        if found != 1:
            raise SystemExit(f"{name}: no longer applies: its old text occurs {found} times in {header}:\n{change['old']}")
        text = text.replace(change["old"], change["new"])
    return text


def load(path):
    data = tomllib.loads(path.read_text())
    return NamedBug(path.stem, data["bug"], data["rule"], data["file"], apply(path.stem, data["file"], data["change"]),
                    data["test"], data["red"])


def collect(pattern):
    bugs = [load(path) for path in sorted(FOLDER.glob("*.toml")) if fnmatch.fnmatch(path.stem, pattern)]
    if not bugs:
        raise SystemExit(f"no named bug matches '{pattern}'")
    return bugs


def is_right(bug, verdict):
    """Killed by the test that names the bug; a template's test case has its type behind the name."""
    return verdict.kind == "test" and (verdict.detail.startswith(bug.red) or verdict.detail in ("time", "memory", "crash"))


def report(bugs, verdicts, _):
    passed = 0
    for bug, verdict in zip(bugs, verdicts):
        right = is_right(bug, verdict)
        passed += right
        note = "" if right or verdict.kind != "test" else f"  EXPECTED: {bug.red}"
        print(f"{bug.name:<46} {verdict}{note}", flush=True)
    print(f"{passed} passed, {len(bugs) - passed} failed")
    return passed == len(bugs)
