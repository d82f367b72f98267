#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program with its bundled model: text, streaming, stops, JSON, scores, sampling, Ctrl-C.

    check_bundled.py GENERATE [GOLDEN_JSON]
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import Checks, run

PROMPT = "Once upon a time"
NUMBER = (int, float)
FIELDS = {
    "text": str,
    "prompt_ids": list,
    "ids": list,
    "pieces": list,
    "logprobs": list,
    "finish_reason": str,
    "stop_kind": str,
    "matched_stop": (str, type(None)),
    "prompt_logits": (list, type(None)),
    "nll": (*NUMBER, type(None)),
    "perplexity": (*NUMBER, type(None)),
    "timings": dict,
    "stats": dict,
}
TIMINGS = ("load_s", "prefill_s", "decode_s", "prefill_tokens_per_s", "decode_tokens_per_s")
STATS = ("prompt_tokens", "completion_tokens", "cached_tokens", "forward_calls", "forward_rows", "cache_bytes")


class Bundled:
    def __init__(self, generate):
        self.generate = generate
        self.checks = Checks()

    def run(self, *arguments, **more):
        return run(self.generate, *arguments, **more)

    def json(self, *arguments, prompt=PROMPT, max_tokens=48):
        result = self.run("--prompt", prompt, "--max-tokens", str(max_tokens), "--json", *arguments)
        if result.code != 0:
            raise SystemExit(f"FAILED generate {arguments}: {result}")
        return result.json()

    def help_and_version(self):
        for flag, word in (("--help", b"--max-tokens"), ("--version", b"tinyllm")):
            result = self.run(flag)
            self.checks.that(flag, result.code == 0 and word in result.stdout and not result.stderr, result)

    def fields(self):
        out = self.json("--top-logits", "5")
        for name, kind in FIELDS.items():
            self.checks.that(f"field {name}", name in out and isinstance(out[name], kind), out.get(name, "absent"))
        self.checks.equal("no field besides", sorted(out), sorted(FIELDS))
        self.checks.that("timings", all(isinstance(out["timings"][name], NUMBER) for name in TIMINGS), out["timings"])
        self.checks.that("stats", all(isinstance(out["stats"][name], int) for name in STATS), out["stats"])
        self.checks.that("a logprob an id", len(out["logprobs"]) == len(out["ids"]) and max(out["logprobs"]) <= 0, out["logprobs"])
        stats = out["stats"]
        self.checks.equal("tokens are counted", (stats["prompt_tokens"], stats["completion_tokens"]), (len(out["prompt_ids"]), len(out["ids"])))
        self.checks.equal("each token goes through the model once", stats["forward_rows"], stats["prompt_tokens"] + stats["forward_calls"] - 1)
        top = out["prompt_logits"]
        self.checks.that("top logits in order", len(top) == 5 and top == sorted(top, key=lambda pair: -pair[1]), top)
        self.checks.equal("the first id is the highest logit", out["ids"][0], top[0][0])
        self.checks.that("only a score has a likelihood", out["nll"] is None and out["perplexity"] is None)
        self.checks.that("no top logits unless asked for", self.json()["prompt_logits"] is None)

    def text_streams(self):
        out = self.json()
        self.checks.equal("pieces make the text", "".join(out["pieces"]), out["text"])
        self.checks.that("text comes in pieces", len(out["pieces"]) > 10, out["pieces"])
        plain = self.run("--prompt", PROMPT, "--max-tokens", "48")
        self.checks.that("plain output is the text alone", plain.code == 0 and plain.stdout.decode() == out["text"] and not plain.stderr, plain)
        stats = self.run("--prompt", PROMPT, "--max-tokens", "48", "--stats")
        self.checks.that("--stats goes to standard error", stats.stdout == plain.stdout and b"prefill" in stats.stderr, stats)

    def caches(self):
        exact = self.json("--cache", "none")
        self.checks.that("without a cache every pass sees all", exact["stats"]["forward_rows"] > 10 * len(exact["prompt_ids"]), exact["stats"])
        for dtype in ("f32", "f16", "bf16"):
            out = self.json("--kv-dtype", dtype)
            self.checks.that(f"{dtype} runs", len(out["ids"]) == len(exact["ids"]) or out["finish_reason"] == "stop", out)
            if dtype == "f32":
                self.checks.equal("with and without a cache the same ids", out["ids"], exact["ids"])
        size = {dtype: self.json("--kv-dtype", dtype)["stats"]["cache_bytes"] for dtype in ("f32", "f16", "bf16")}
        self.checks.that("16 bits take half the memory", size["f32"] == 2 * size["f16"] == 2 * size["bf16"], size)
        self.checks.equal("one thread gives the same ids", self.json("--kv-dtype", "f32", "--threads", "1")["ids"], exact["ids"])

    def golden(self, path):
        for case in json.loads(Path(path).read_text())["cases"]:
            for cache in ("contiguous", "none"):
                out = self.json("--ignore-eos", "--kv-dtype", "f32", "--cache", cache, prompt=case["prompt"], max_tokens=len(case["greedy_ids"]))
                name = f"{case['name']}, cache {cache}"
                self.checks.equal(f"{name}: prompt ids", out["prompt_ids"], case["prompt_ids"])
                self.checks.equal(f"{name}: ids", out["ids"], case["greedy_ids"])
                self.checks.equal(f"{name}: text", out["text"], case["text"])

    def endings(self):
        whole = self.json("--ignore-eos")
        self.checks.equal("--max-tokens", (len(whole["ids"]), whole["finish_reason"], whole["stop_kind"]), (48, "length", "max_tokens"))
        none = self.json(max_tokens=0)
        self.checks.equal("--max-tokens 0", (none["text"], none["ids"], none["finish_reason"]), ("", [], "length"))

        text = whole["text"]
        stop = text[20:24]
        before = text[: text.index(stop)]
        out = self.json("--ignore-eos", "--stop", "@@never@@", "--stop", stop)
        self.checks.equal("--stop", (out["text"], out["finish_reason"], out["stop_kind"], out["matched_stop"]), (before, "stop", "stop_string", stop))
        self.checks.equal("--stop streams what it keeps", "".join(out["pieces"]), before)
        self.checks.equal("--include-stop", self.json("--ignore-eos", "--stop", stop, "--include-stop")["text"], before + stop)
        self.checks.equal("a stop that looks like a list is one stop", self.json("--ignore-eos", "--stop", "[a,e]")["text"], text)

        endless = self.json("--ignore-eos", max_tokens=1_000_000)
        self.checks.equal("the context ends it", (endless["finish_reason"], endless["stop_kind"]), ("length", "context"))

    def prompts(self):
        words = "Le renard, c'est-à-dire 人之初 🦊\r\n\n"
        expected = self.run("--prompt", words, "--tokenize")
        self.checks.that("--tokenize prints ids", expected.code == 0 and all(isinstance(i, int) for i in expected.json()), expected)
        self.checks.equal("as generation reads them", self.json(prompt=words, max_tokens=1)["prompt_ids"], expected.json())
        self.checks.equal("stdin", self.run("-", "--tokenize", stdin=words.encode()).stdout, expected.stdout)
        with tempfile.NamedTemporaryFile() as file:
            file.write(words.encode())
            file.flush()
            self.checks.equal("--file", self.run("--file", file.name, "--tokenize").stdout, expected.stdout)
        self.checks.equal("an empty text has no ids", self.run("--prompt", "", "--tokenize").stdout, b"[]\n")
        self.checks.that("a prompt may look like a flag", self.run("--prompt", "--json", "--tokenize").code == 0)
        broken = b"caf\xc3 \xff\x00\xe4\xb8 The"
        out = self.run("-", "--json", "--max-tokens", "24", stdin=broken)
        self.checks.that("bytes that are not UTF-8", out.code == 0 and isinstance(out.json()["text"], str), out)
        self.checks.that("a prompt that ends inside a character", self.run("-", "--json", "--max-tokens", "4", stdin="人".encode()[:2]).code == 0)

    def score(self):
        result = self.run("--prompt", PROMPT + ", a lion", "--score", "--json", "--top-logits", "3")
        out = result.json()
        self.checks.equal("a score has the same fields", sorted(out), sorted(FIELDS))
        self.checks.that("perplexity is exp(nll)", math.isclose(out["perplexity"], math.exp(out["nll"]), rel_tol=1e-6), out)
        nothing = ("text", "ids", "pieces", "logprobs", "finish_reason", "stop_kind", "matched_stop")
        self.checks.that("a score makes nothing", all(out[name] is None for name in nothing), out)
        self.checks.equal("a score's logits are those after the prompt", len(out["prompt_logits"]), 3)
        plain = self.run("--prompt", PROMPT + ", a lion", "--score")
        self.checks.that("a score for people", plain.code == 0 and b"perplexity" in plain.stdout and plain.stdout.count(b"\n") == 1, plain)
        one_by_one = self.score_by_generating(PROMPT)
        for cache in ("none", "contiguous"):
            nll = self.run("--prompt", PROMPT, "--score", "--json", "--kv-dtype", "f32", "--cache", cache).json()["nll"]
            self.checks.that(f"score, cache {cache}, equals the logits'", math.isclose(nll, one_by_one, abs_tol=1e-4), (nll, one_by_one))

    def score_by_generating(self, text):
        """The same number from all the logits after each beginning of the prompt."""
        ids = self.run("--prompt", text, "--tokenize").json()
        total = 0.0
        for n in range(1, len(ids)):
            beginning = self.beginning(text, ids, n)
            out = self.json("--top-logits", "1000000", "--kv-dtype", "f32", prompt=beginning, max_tokens=1)
            logits = dict(map(tuple, out["prompt_logits"]))
            highest = max(logits.values())
            total -= logits[ids[n]] - highest - math.log(sum(math.exp(x - highest) for x in logits.values()))
        return total / (len(ids) - 1)

    def beginning(self, text, ids, n):
        """The part of the text that gives its first n ids."""
        for end in range(len(text) + 1):
            if self.run("--prompt", text[:end], "--tokenize").json() == ids[:n]:
                return text[:end]
        raise SystemExit(f"FAILED no beginning of '{text}' gives its first {n} ids")

    def sampling(self):
        flags = ("--temperature", "1.2", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.01", "--repetition-penalty", "1.1", "--seed")
        first = self.json(*flags, "7")
        self.checks.equal("a seed gives the same ids again", self.json(*flags, "7")["ids"], first["ids"])
        self.checks.that("another seed gives others", self.json(*flags, "8")["ids"] != first["ids"])
        self.checks.equal("--top-k 1 is greedy", self.json("--temperature", "1", "--top-k", "1")["ids"], self.json()["ids"])

    def interrupt(self):
        """Ctrl-C after the first text."""
        words = ("--prompt", PROMPT, "--ignore-eos", "--kv-dtype", "f32")
        child = subprocess.Popen([self.generate, *words, "--cache", "none"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        start = os.read(child.stdout.fileno(), 1)
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=120)
        whole = self.run(*words).stdout
        fine = child.returncode == 130 and whole.startswith(start + rest) and len(start + rest) < len(whole) and not errors
        self.checks.that("Ctrl-C ends with what was made", fine, (child.returncode, start + rest, errors))

    def closed_output(self):
        """A reader that leaves, as `head -c 10` does."""
        command = [self.generate, "--prompt", PROMPT, "--ignore-eos", "--cache", "none"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(child.stdout.fileno(), 10)
        child.stdout.close()
        errors = child.stderr.read()
        self.checks.equal("a reader that leaves ends it quietly", (child.wait(timeout=120), errors), (0, b""))


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    bundled = Bundled(sys.argv[1])
    bundled.help_and_version()
    bundled.fields()
    bundled.text_streams()
    bundled.caches()
    bundled.endings()
    bundled.prompts()
    bundled.score()
    bundled.sampling()
    bundled.interrupt()
    bundled.closed_output()
    if len(sys.argv) == 3:
        bundled.golden(sys.argv[2])
    return bundled.checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
