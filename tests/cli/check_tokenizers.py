#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own tokenizer tests, run through --tokenize.

    check_tokenizers.py GENERATE VOCAB_DIR NAME...

VOCAB_DIR holds ggml-vocab-NAME.gguf, its texts (.inp, divided by a marker) and their ids (.out, a line each).
"""

import sys
import tempfile
from pathlib import Path

from checks import Checks, run

MARKER = b"\n__ggml_vocab_test__\n"


def cases(model):
    texts = Path(f"{model}.inp").read_bytes().split(MARKER)
    lines = Path(f"{model}.out").read_text().split("\n")
    if len(texts) > len(lines):
        raise SystemExit(f"FAILED {model}: {len(texts)} texts but {len(lines)} lines of ids")
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines)]


def tokenize(generate, model, text):
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        return run(generate, "--model", model, "--tokenize", "--file", file.name)


def check(checks, generate, name, model):
    before = checks.failed
    for text, expected in cases(model):
        result = tokenize(generate, model, text)
        ids = result.json() if result.code == 0 else None
        checks.that(f"{name}: {text!r}", ids == expected, f"{ids or result} instead of {expected}", quiet=True)
    if checks.failed == before:
        print(f"ok     {name}: {len(cases(model))} texts", flush=True)


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    checks = Checks()
    for name in sys.argv[3:]:
        check(checks, sys.argv[1], name, f"{sys.argv[2]}/ggml-vocab-{name}.gguf")
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
