#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input gives exit code 2 and one clear line; a damaged model never a crash.

    check_bad_input.py GENERATE BUNDLED_MODEL [--no-memory-limit]
"""

import argparse
import os
import random
import struct
import sys
import tempfile
from pathlib import Path

from checks import Checks, run

CUT_AT_EVERY_BYTE_UP_TO = 2500
RANDOM_CUTS = 200
RANDOM_FLIPS = 400
PROMPT = ("--prompt", "The Fox", "--max-tokens", "4", "--threads", "1")


def metadata_value(data, key):
    """Where the value of a metadata key begins, behind the key and the value's type."""
    return data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4


class BadInput:
    def __init__(self, generate, model, folder, limited):
        self.generate = generate
        self.model = Path(model)
        self.data = self.model.read_bytes()
        self.folder = Path(folder)
        self.limited = limited
        self.checks = Checks()

    def run(self, *arguments, **more):
        return run(self.generate, *arguments, limited=self.limited, timeout=120, **more)

    def refused(self, name, *arguments, says="", **more):
        result = self.run(*arguments, **more)
        self.checks.that(name, result.is_one_line_refusal() and says.encode() in result.stderr, result)

    def written(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return str(path)

    def command_lines(self):
        self.refused("no prompt", says="prompt")
        self.refused("no prompt, no flags' values", "--json")
        self.refused("unknown flag", "--prompt", "a", "--frobnicate", says="--frobnicate")
        self.refused("unknown flag with a line end", "--prompt", "a", "--two\nlines")
        self.refused("unknown argument", "words", says="words")
        self.refused("flag without its value", "--prompt", "a", "--max-tokens", says="--max-tokens")
        self.refused("prompt and file", "--prompt", "a", "--file", str(self.model), says="only one")
        self.refused("prompt and stdin", "--prompt", "a", "-", stdin=b"b", says="only one")
        self.refused("file and stdin", "--file", str(self.model), "-", stdin=b"b", says="only one")
        self.refused("prompt twice", "--prompt", "a", "--prompt", "b", says="--prompt")
        self.refused("tokenize and score", "--prompt", "a b", "--tokenize", "--score", says="only one")
        for flag, value in (("--cache", "big"), ("--kv-dtype", "f8"), ("--activations", "f16"), ("--cache", ""), ("--exactness", "some")):
            self.refused(f"{flag} '{value}'", "--prompt", "a", flag, value, says=flag)

    def batches(self):
        batch = ("--batch", self.written("prompts.txt", b"The Fox\nThe Lion\n"))
        self.refused("batch and prompt", *batch, "--prompt", "a", says="only one")
        self.refused("batch and file", *batch, "--file", batch[1], says="only one")
        self.refused("batch and stdin", *batch, "-", stdin=b"b", says="only one")
        self.refused("two batches", *batch, *batch, says="--batch")
        self.refused("batch and tokenize", *batch, "--tokenize", says="only one")
        self.refused("batch and score", *batch, "--score", says="only one")
        self.refused("batch and top logits", *batch, "--top-logits", "3", says="--top-logits")
        for cache in ("none", "contiguous"):
            self.refused(f"batch, cache {cache}", *batch, "--cache", cache, says="--cache paged")
        self.refused("batch that rounds", *batch, "--exactness", "rounding", says="--exactness")
        self.refused("missing batch", "--batch", str(self.folder / "none.txt"), says="none.txt")
        self.refused("folder as batch", "--batch", str(self.folder), says="cannot read")
        self.refused("empty batch", "--batch", self.written("empty.txt", b""), says="no prompt")
        self.refused("batch of blank lines", "--batch", self.written("blank.txt", b"\n \n\t\r\n\n"), says="no prompt")
        long = self.written("long.txt", b"The Fox\n\n" + b"The lion and the mouse. " * 4000 + b"\n")
        self.refused("a prompt of a batch too long", "--batch", long, says="line 3")
        self.refused("a bad stop in a batch", *batch, "--stop", "")

    def numbers(self):
        whole = ("--max-tokens", "--top-k", "--seed", "--threads", "--top-logits")
        real = ("--temperature", "--top-p", "--min-p", "--repetition-penalty")
        for flag in whole + real:
            for value in ("-1", "nan", "inf", "-inf", "abc", "", " 1", "1x", "1e999", "99999999999999999999999999"):
                if flag in real and value == "99999999999999999999999999" and flag not in ("--top-p", "--min-p"):
                    continue  # a large number is a number
                self.refused(f"{flag} '{value}'", "--prompt", "a", flag, value, says=flag)
        for flag in whole:
            self.refused(f"{flag} 1.5", "--prompt", "a", flag, "1.5", says=flag)
        for flag, value in (("--temperature", "1e-31"), ("--temperature", "1e31"), ("--top-p", "0"), ("--top-p", "1.01"), ("--min-p", "1.01"), ("--repetition-penalty", "0"), ("--threads", "0")):
            self.refused(f"{flag} {value}", "--prompt", "a", flag, value, says=flag)

    def prompts(self):
        self.refused("empty prompt", "--prompt", "", says="empty")
        self.refused("empty file", "--file", self.written("empty.txt", b""), says="empty")
        self.refused("empty stdin", "-", says="empty")
        self.refused("empty prompt to score", "--prompt", "", "--score", says="empty")
        self.refused("missing prompt file", "--file", str(self.folder / "none.txt"), says="none.txt")
        self.refused("folder as prompt file", "--file", str(self.folder), says="cannot read")
        if os.geteuid() != 0:  # root may read everything
            locked = self.written("locked.txt", b"a")
            os.chmod(locked, 0)
            self.refused("unreadable prompt file", "--file", locked, says="locked.txt")
        long = self.written("long.txt", b"The lion and the mouse. " * 4000)
        for cache in ("none", "contiguous", "paged"):
            self.refused(f"prompt too long, cache {cache}", "--file", long, "--cache", cache, says="context")
        self.refused("prompt too long to score", "--file", long, "--score", says="context")
        self.refused("empty stop", "--prompt", "a", "--stop", "")
        self.refused("stop that is not UTF-8", "--prompt", "a", "--stop", b"\xff")

    def models(self):
        prompt = ("--prompt", "a")
        self.refused("missing model", *prompt, "--model", str(self.folder / "none.gguf"), says="none.gguf")
        self.refused("model with a line end in its name", *prompt, "--model", "no\nsuch\nmodel")
        self.refused("empty model name", *prompt, "--model", "")
        self.refused("folder as model", *prompt, "--model", str(self.folder), says="folder")
        self.refused("device as model", *prompt, "--model", "/dev/null")
        self.refused("empty model", *prompt, "--model", self.written("empty.gguf", b""), says="empty.gguf")
        self.refused("text as model", *prompt, "--model", self.written("text.gguf", b"Once upon a time\n" * 100), says="text.gguf")
        for version in (0, 1, 4, 99, 0x03000000):
            data = self.data[:4] + struct.pack("<I", version) + self.data[8:]
            self.refused(f"version {version}", *prompt, "--model", self.written("version.gguf", data), says="version")
        self.refused("cut model", *prompt, "--model", self.written("cut.gguf", self.data[: len(self.data) // 2]), says="cut.gguf")

        at = metadata_value(self.data, b"general.architecture") + 8
        other = self.data[:at] + b"mamba" + self.data[at + 5 :]
        self.refused("another architecture", *prompt, "--model", self.written("other.gguf", other), says="mamba")

        if self.limited:
            at = metadata_value(self.data, b"llama.context_length")
            huge = self.data[:at] + struct.pack("<I", 1 << 30) + self.data[at + 4 :]
            self.refused("a cache beyond the memory", *prompt, "--model", self.written("huge.gguf", huge), says="memory")

        only_words = self.data[:8] + struct.pack("<Q", 0) + self.data[16:]
        path = self.written("vocabulary.gguf", only_words)
        self.refused("a vocabulary without weights", *prompt, "--model", path, says="weights")
        self.refused("a vocabulary without weights to score", "--prompt", "a b", "--score", "--model", path, says="weights")
        self.checks.equal(
            "a vocabulary is enough to tokenize",
            self.run(*prompt, "--tokenize", "--model", path),
            self.run(*prompt, "--tokenize", "--model", str(self.model)),
        )

    def full_disk(self):
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                self.refused("a full disk", *PROMPT, "--model", str(self.model), stdout=full, says="standard output")

    def cut_models(self):
        """Shortened step by step, longest first."""
        path = self.written("shorter.gguf", self.data)
        rng = random.Random(1)
        lengths = set(range(CUT_AT_EVERY_BYTE_UP_TO)) | {rng.randrange(len(self.data) - 64) for _ in range(RANDOM_CUTS)}
        bad = 0
        for length in sorted(lengths, reverse=True):
            os.truncate(path, length)
            result = self.run(*PROMPT, "--model", path)
            if not self.checks.that(f"model cut to {length} bytes", result.is_one_line_refusal(), result, quiet=True):
                bad += 1
                if bad > 20:
                    print("       (more cuts are not tried)")
                    return

    def flipped_models(self):
        """One byte at a time, mostly where lengths and offsets stand."""
        path = self.written("flipped.gguf", self.data)
        rng = random.Random(2)
        header = min(len(self.data), 8192)
        with open(path, "r+b", buffering=0) as file:
            for i in range(RANDOM_FLIPS):
                at = rng.randrange(header if i % 4 < 2 else min(len(self.data), 65536) if i % 4 == 2 else len(self.data))
                value = self.data[at] ^ rng.randrange(1, 256)
                os.pwrite(file.fileno(), bytes([value]), at)
                result = self.run(*PROMPT, "--model", path)
                os.pwrite(file.fileno(), self.data[at : at + 1], at)
                fine = result.code == 0 or (result.code == 2 and result.stderr.count(b"\n") == 1)
                self.checks.that(f"byte {at} set to {value}", fine, result, quiet=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("generate")
    parser.add_argument("model")
    parser.add_argument("--no-memory-limit", action="store_true", help="for programs that reserve address space, as sanitizers do")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bad = BadInput(args.generate, args.model, folder, not args.no_memory_limit)
        bad.command_lines()
        bad.batches()
        bad.numbers()
        bad.prompts()
        bad.models()
        bad.full_disk()
        bad.cut_models()
        bad.flipped_models()
    return bad.checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
