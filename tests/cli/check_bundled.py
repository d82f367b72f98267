#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program with its bundled model: text, streaming, stops, JSON, scores, sampling, batches, Ctrl-C.

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
BLOCK = 16  # positions of a block of the paged cache
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
        size = {}
        paged = {}
        for dtype in ("f32", "f16", "bf16", "q8"):
            out = self.json("--kv-dtype", dtype)
            self.checks.that(f"{dtype} runs", len(out["ids"]) == len(exact["ids"]) or out["finish_reason"] == "stop", out)
            if dtype == "f32":
                self.checks.equal("with and without a cache the same ids", out["ids"], exact["ids"])
                self.checks.equal("and the same logprobs", out["logprobs"], exact["logprobs"])
            in_blocks = self.json("--kv-dtype", dtype, "--cache", "paged")
            self.checks.equal(f"{dtype}, paged: the same", self.answer(in_blocks), self.answer(out))
            size[dtype] = out["stats"]["cache_bytes"]
            paged[dtype] = in_blocks["stats"]["cache_bytes"]
        self.checks.that("16 bits take half the memory", size["f32"] == 2 * size["f16"] == 2 * size["bf16"], size)
        self.checks.that("8 bits take a little more than a quarter", size["f32"] < 4 * size["q8"] < 1.2 * size["f32"], size)
        positions = len(exact["prompt_ids"]) + len(exact["ids"]) - 1
        blocks = -(-positions // BLOCK)
        whole = -(-(len(exact["prompt_ids"]) + len(self.endless()["ids"])) // BLOCK)
        self.checks.that("a paged cache has the blocks that it fills", all(paged[d] * whole == size[d] * blocks for d in size), (size, paged, blocks, whole))
        self.checks.equal("one thread gives the same ids", self.json("--kv-dtype", "f32", "--threads", "1")["ids"], exact["ids"])

    @staticmethod
    def answer(out):
        """What does not depend on how it was computed."""
        return [out[name] for name in ("text", "prompt_ids", "ids", "pieces", "logprobs", "finish_reason", "stop_kind", "matched_stop")]

    def endless(self):
        return self.json("--ignore-eos", max_tokens=1_000_000)

    def exactness(self):
        """By default neither threads nor company change a bit; a prompt in a batch is computed in whatever chunks."""
        long = " ".join([PROMPT] * 30)
        exact = self.json(prompt=long)
        self.checks.equal("one thread gives the same logprobs", self.json("--threads", "1", prompt=long)["logprobs"], exact["logprobs"])
        self.checks.that("rounding runs", self.json("--exactness", "rounding", prompt=long)["ids"])

    def batch_json(self, lines, *arguments, ends="\n"):
        with tempfile.NamedTemporaryFile() as file:
            file.write("".join(line + ends for line in lines).encode())
            file.flush()
            result = self.run("--batch", file.name, "--json", *arguments)
        if result.code != 0 or result.stderr:
            raise SystemExit(f"FAILED generate --batch {arguments}: {result}")
        return result.json()

    def batch_equals_alone(self, name, prompts, *arguments):
        out = self.batch_json(prompts, *arguments)
        self.checks.equal(f"{name}: a result a prompt", len(out["results"]), len(prompts))
        for prompt, result in zip(prompts, out["results"]):
            alone = self.run("--prompt", prompt, "--json", *arguments).json()
            self.checks.equal(f"{name}: as alone: {prompt[:30]!r}", self.answer(result), self.answer(alone))
            self.checks.equal(f"{name}: the same fields", sorted(result), sorted(alone))
        return out

    def batch(self):
        prompts = [PROMPT, "The Fox", "Le corbeau", "人之初", PROMPT + ", a lion", " ".join([PROMPT] * 25), PROMPT + ", a lion and", "A", PROMPT]
        sampled = ("--temperature", "1.2", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.01", "--repetition-penalty", "1.1", "--seed", "7")
        out = self.batch_equals_alone("batch", prompts, "--max-tokens", "40")
        self.batch_equals_alone("sampled batch", prompts, "--max-tokens", "40", *sampled)
        self.batch_equals_alone("batch in q8", prompts, "--max-tokens", "40", "--kv-dtype", "q8")
        self.batch_equals_alone("batch to the context's end", prompts, "--ignore-eos")
        stop = out["results"][0]["text"][10:13]
        self.batch_equals_alone("batch with stops", prompts, "--max-tokens", "40", "--stop", stop, "--cache", "paged")
        self.batch_equals_alone("batch of no tokens", prompts, "--max-tokens", "0")
        many = prompts * 40
        crowd = self.batch_json(many, "--max-tokens", "8", "--threads", "1")
        few = self.batch_json(prompts, "--max-tokens", "8")
        self.checks.that("360 prompts", all(self.answer(r) == self.answer(few["results"][i % len(prompts)]) for i, r in enumerate(crowd["results"])))
        self.checks.that("prompts begin with what others computed", crowd["stats"]["cached_tokens"] > 0, crowd["stats"])

        self.checks.equal("a batch has the fields", sorted(out), ["results", "stats", "timings"])
        self.checks.that("a batch's timings", all(isinstance(out["timings"][name], NUMBER) for name in ("load_s", "total_s", "tokens_per_s")), out["timings"])
        stats = out["stats"]
        self.checks.that("a batch's stats", all(isinstance(stats[name], int) for name in (*STATS, "requests", "preemptions")), stats)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            self.checks.equal(f"{name} add up", stats[name], sum(result["stats"][name] for result in out["results"]))
        self.checks.that("rows go through the model together", stats["forward_rows"] > 2 * stats["forward_calls"], stats)

        same = self.batch_json(["", *prompts, "  ", ""], "--max-tokens", "40", ends="\r\n")
        self.checks.equal("blank lines are skipped", [self.answer(r) for r in same["results"]], [self.answer(r) for r in out["results"]])
        piped = self.run("--batch", "-", "--max-tokens", "40", "--json", stdin="\n".join(prompts).encode()).json()
        self.checks.equal("a batch from standard input", [self.answer(r) for r in piped["results"]], [self.answer(r) for r in out["results"]])
        plain = self.run("--batch", "-", "--max-tokens", "40", "--stats", stdin="\n\n".join(prompts).encode())
        texts = {f"{2 * i + 1}\t{r['text']}\n" for i, r in enumerate(out["results"])}
        fine = plain.code == 0 and all(text in plain.stdout.decode() for text in texts) and len(plain.stdout.decode()) == sum(map(len, texts))
        self.checks.that("texts behind their lines' numbers", fine, plain)
        self.checks.that("a batch's --stats go to standard error", b"forward passes" in plain.stderr, plain)

    def batch_interrupt(self):
        """Ctrl-C after the first answer."""
        command = [self.generate, "--batch", "-", "--ignore-eos", "--threads", "1"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            child.stdin.write(("\n".join([" ".join([PROMPT] * 60)] + [PROMPT] * 3000)).encode())
            child.stdin.close()
            first = os.read(child.stdout.fileno(), 1)
            child.send_signal(signal.SIGINT)
            rest, errors = child.stdout.read(), child.stderr.read()
            code = child.wait(timeout=120)
        numbers = {int(line.split(b"\t")[0]) for line in (first + rest).split(b"\n") if line.split(b"\t")[0].isdigit()}
        fine = code == 130 and not errors and 1 < len(numbers) < 3001
        self.checks.that("Ctrl-C ends a batch with what was made", fine, (code, len(numbers), errors))

    def golden(self, path):
        for case in json.loads(Path(path).read_text())["cases"]:
            for cache in ("contiguous", "paged", "none"):
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

        endless = self.endless()
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
        for cache in ("none", "contiguous", "paged"):
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
    bundled.exactness()
    bundled.batch()
    bundled.endings()
    bundled.prompts()
    bundled.score()
    bundled.sampling()
    bundled.interrupt()
    bundled.batch_interrupt()
    bundled.closed_output()
    if len(sys.argv) == 3:
        bundled.golden(sys.argv[2])
    return bundled.checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
