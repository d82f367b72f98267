# SPDX-License-Identifier: Apache-2.0
"""Mechanical changes to the headers: statements deleted, operators swapped, constants moved by one, conditions negated,
results replaced by a default. Each is tried against the tests that include its header, the nearest first.
"""
import collections
import dataclasses
import fnmatch
import pathlib
import random
import re
import tomllib

from harness import ROOT, TESTS

INCLUDE = ROOT / "include"
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "+=": "-=", "-=": "+=",
         "&&": "||", "||": "&&"}


@dataclasses.dataclass(frozen=True)
class Change:
    header: str  # below include/
    line: int
    what: str
    text: str
    runs: tuple

    def describe(self):
        return f"{self.header}:{self.line}: {self.what}"


# Reading C++ as formatted text: everything that must not change is blanked out, at the same offsets.


def blank(text, begin, end):
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]


def blank_all(pattern, text, flags=re.MULTILINE):
    for found in re.finditer(pattern, text, flags):
        text = blank(text, found.start(), found.end())
    return text


def closing(text, opening):
    """Offset of the bracket that closes the one at `opening`; the text's end if none does."""
    pairs = {"(": ")", "{": "}", "<": ">", "[": "]"}
    left, right = text[opening], pairs[text[opening]]
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == left) - (text[at] == right)
        if depth == 0:
            return at
    return len(text) - 1


def without_comments(text):
    """Comments, literals of text and preprocessor lines blanked."""
    return blank_all(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|^\s*#[^\n]*', text)


def changeable(code):
    """What operators and constants are looked for in: no declarations of templates, concepts, assertions or messages."""
    for start in [m.end() - 1 for m in re.finditer(r"\btemplate <", code)]:
        code = blank(code, start, closing(code, start) + 1)
    for start in [m.end() - 1 for m in re.finditer(r"\b(?:static_assert|TINYLLM_ASSERT|message)\(", code)]:
        code = blank(code, start, closing(code, start) + 1)
    return blank_all(r"\bconcept \w+ =[^;]*;|\bthrow [^;]*;|\brequires \w[^{;]*|^using [^;]*;", code)


@dataclasses.dataclass
class Statement:
    begin: int
    end: int  # of its semicolon


BLOCK = re.compile(r"(?:\)|\b(?:else|do|try|const|noexcept|override))\s*$|^\s*(?:inline |export )?(?:namespace|class|struct|enum|union|template)\b")


def statements(code):
    """Simple statements: what stands between separators and ends in a semicolon outside parentheses and initialisers."""
    found = []
    open_brackets = []
    begin = 0
    for at, c in enumerate(code):
        if c == "(":
            open_brackets.append(c)
        elif c == "{":
            block = BLOCK.search(code[begin:at]) is not None
            open_brackets.append("block" if block else "init")
            if block:
                begin = at + 1
        elif c in ")}" and open_brackets:
            if open_brackets.pop() == "block":
                begin = at + 1
        elif c == ";" and (not open_brackets or open_brackets[-1] == "block"):
            found.append(Statement(begin, at))
            begin = at + 1
    return found


HEAD = re.compile(r"\s*(?:(?:public|private|protected|case [\w:]+|default):|else\b|(?:if|for|while|switch)(?: constexpr)? (?=\())")
SIMPLE = re.compile(
    r"(?:throw|continue|break)\b.*$"
    r"|(?:\+\+|--)\w[^;]*$|[\w.\->]+(?:\+\+|--)$"
    r"|\w+(?:(?:->|\.|::)\w+|\[[^;=]*\]|\([^;=]*\))* [+\-*/|&]?= .*$"
    r"|\w+(?:(?:->|\.|::)\w+|\[[^;]*\]|\([^;]*\))*\(.*\)$", re.DOTALL)


def behind_heads(code, statement):
    """Where the statement begins behind `if (...)`, `else`, `for (...)` and labels."""
    at = statement.begin
    while head := HEAD.match(code, at, statement.end):
        at = head.end()
        if code[at] == "(":
            at = closing(code, at) + 1
    return at + len(code[at:statement.end]) - len(code[at:statement.end].lstrip())


# Each of these yields (begin, end, replacement); no replacement means negated.


def deletions(code, _):
    for statement in statements(code):
        begin = behind_heads(code, statement)
        simple = code[begin:statement.end]
        declaration = simple.startswith("static_assert") or simple.endswith(("= default", "= delete"))
        if SIMPLE.match(simple) and not declaration:
            yield begin, statement.end, ""


def swaps(_, plain):
    for found in re.finditer(r"(?<=\s)(?:[<>=!]=|[<>]|[+-]=?|&&|\|\|)(?=\s)", plain):
        if found[0] in SWAPS:
            yield found.start(), found.end(), SWAPS[found[0]]
    for found in re.finditer(r"\+\+|--", plain):
        yield found.start(), found.end(), "--" if found[0] == "++" else "++"


def constants(_, plain):
    for found in re.finditer(r"(?<![\w.'])(?:0x[0-9A-F]{1,2}|\d{1,3})(?=U?\b)(?!\.)", plain):
        value = int(found[0], 0)
        yield found.start(), found.end(), str(value + 1)
        if value > 0:
            yield found.start(), found.end(), str(value - 1)


def negations(_, plain):
    for found in re.finditer(r"\b(?:if|while) \(", plain):
        opening = found.end() - 1
        end = closing(plain, opening)
        begin = max(plain.rfind(";", opening, end), opening) + 1
        begin += len(plain[begin:end]) - len(plain[begin:end].lstrip())
        yield begin, end, None


def defaults(code, plain):
    for found in re.finditer(r"\breturn ([^;]+);", plain):
        expression = code[found.start(1):found.end(1)].strip()
        default = {"false": "true", "true": "false", "0": "1"}.get(expression, "{}")
        if expression not in ("", "{}", "*this", "std::nullopt"):  # literals of text are blank here
            yield found.start(1), found.end(1), default


def edits(text):
    code = without_comments(text)
    plain = changeable(code)
    for find in (deletions, swaps, constants, defaults, negations):
        for begin, end, replacement in find(code, plain):
            yield begin, end, f"!({text[begin:end]})" if replacement is None else replacement


def in_short(text, begin, end, replacement):
    """The line that changes, with the change."""
    first = text.rfind("\n", 0, begin) + 1
    last = text.find("\n", end)
    short = [re.sub(r"\s+", " ", part.strip()) for part in (text[begin:end], replacement or "(nothing)", text[first:last])]
    return f"`{short[0]}` -> `{short[1]}` in `{short[2]}`"


# Which tests could see a change.


def tests():
    """Test sources that need nothing but tests/ and the library."""
    found = []
    for source in sorted([*TESTS.glob("*/*.test.cpp"), *TESTS.glob("*/*.property.cpp")]):
        own = re.findall(r'^#include "([^"]+)"', source.read_text(), re.MULTILINE)
        if all((TESTS / name).exists() for name in own):
            found.append(source.relative_to(TESTS).as_posix())
    return found


def includes(path):
    return re.findall(r"^#include <(tinyllm/[^>]+)>", path.read_text(), re.MULTILINE)


def support_includes(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)


def reached(source):
    """How many steps it is from a test source to each header of the library that it includes, however far down."""
    steps = {}
    level = includes(TESTS / source)
    for own in support_includes(TESTS / source):
        level += includes(TESTS / own)
    depth = 1
    while level:
        level = [header for header in level if header not in steps and (INCLUDE / header).exists()]
        steps |= dict.fromkeys(level, depth)
        level = [below for header in level for below in includes(INCLUDE / header)]
        depth += 1
    return steps


def nearest_first(header, reach):
    _, *folder, name = header.split("/")
    stem = name.removesuffix(".hpp")

    def distance(source):
        path = TESTS / source
        named = path.name.startswith(stem + ".")
        of_folder = bool(folder) and path.name.startswith(folder[0] + ".")
        return not named, header not in includes(path), not of_folder, reach[source][header], path.stat().st_size

    return tuple((source, None) for source in sorted((s for s in reach if header in reach[s]), key=distance))


def changes_of(header, runs):
    text = (INCLUDE / header).read_text()
    seen = set()
    for begin, end, replacement in sorted(edits(text)):
        changed = text[:begin] + replacement + text[end:]
        if changed != text and changed not in seen:
            seen.add(changed)
            line = text.count("\n", 0, begin) + 1
            yield Change(header, line, in_short(text, begin, end, replacement), changed, runs)


def collect(chosen):
    reach = {source: reached(source) for source in tests()}
    found = []
    for path in sorted(INCLUDE.rglob("*.hpp")):
        header = path.relative_to(INCLUDE).as_posix()
        runs = nearest_first(header, reach)
        if runs and any(fnmatch.fnmatch(header.removeprefix("tinyllm/"), p) for p in chosen.files):
            found += changes_of(header, runs)
    if chosen.sample is not None and chosen.sample < len(found):
        kept = random.Random(chosen.seed).sample(range(len(found)), chosen.sample)
        found = [found[i] for i in sorted(kept)]
    return found


def explained():
    """What a sweep need not kill: pairs of header and a part of the change's description."""
    entries = tomllib.loads((pathlib.Path(__file__).resolve().parent / "explained.toml").read_text())["explained"]
    return [(entry["header"], entry["change"]) for entry in entries]


def score(counts):
    judged = counts["test"] + counts["passed"]
    return 100.0 if judged == 0 else 100.0 * counts["test"] / judged


def line_of(name, counts):
    return (f"{name:<42} {score(counts):6.1f} %   {counts['test']} killed by tests, {counts['passed']} survived, "
            f"{counts['explained']} survived for a reason, {counts['compiler']} refused by the compiler")


def report(changes, verdicts, chosen):
    by_file = collections.defaultdict(collections.Counter)
    reasons = explained()
    for change, verdict in zip(changes, verdicts):
        kind = verdict.kind
        if kind == "passed":
            known = any(change.header == header and part in change.what for header, part in reasons)
            kind = "explained" if known else kind
            print("survived for a reason" if known else "SURVIVED", change.describe(), flush=True)
        by_file[change.header][kind] += 1
    total = sum(by_file.values(), collections.Counter())
    for header, counts in sorted(by_file.items()):
        print(line_of(header, counts))
    print(line_of("in all", total))
    print(f"{total['test']} passed, {total['passed']} failed")
    return score(total) >= chosen.least
