#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The example engine beside llama.cpp: the same GGUF file, prompts and threads, in alternating runs.

    peer.py GENERATE MODEL FOLDER [--threads N] [--rounds N] [--cases NAME...] [--json FILE]

FOLDER keeps llama.cpp, taken from the PyPI source package llama-cpp-python and built there on first use (CMake, a C++
compiler and pip); `--llama-completion PROGRAM` names one that is built already. Each figure is the median of the rounds;
ratios above 1 say that generate is better. Decode speeds are those that each program reports: llama.cpp's is without
sampling, generate's with it. Time to the first token runs from the start of the process to the first byte of the answer.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
CMAKE_OPTIONS = ["BUILD_SERVER", "BUILD_APP", "BUILD_TESTS", "BUILD_EXAMPLES", "OPENSSL"]
TEXT = "The wolf and the lamb met beside a clear brook, and each of them had come there to drink because the day was hot. "
SHORT_PROMPT = "Once upon a time"


@dataclass(frozen=True)
class Case:
    name: str
    past: int  # tokens of the prompt; 0: the short one
    new: int
    kv: str = "f16"


CASES = (
    Case("start", 0, 1),
    Case("decode", 0, 128),
    Case("prefill-512", 512, 2),
    Case("past-4096", 4096, 48),
    Case("past-4096-q8", 4096, 48, "q8"),
    Case("past-7900", 7900, 48),
    Case("past-7900-q8", 7900, 48, "q8"),
)


@dataclass
class Run:
    prefill: float  # tokens/s
    decode: float | None  # tokens/s
    first_s: float  # to the first byte of the answer
    peak_mb: float
    prompt_tokens: int


class Refused(Exception):
    """The program cannot do this."""


def timed(command, environment=None):
    """Runs a command; gives stdout, stderr, seconds to the first byte of stdout, and the peak memory in MB."""
    with tempfile.TemporaryFile() as errors:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, env=environment)
        first = os.read(process.stdout.fileno(), 1)
        first_s = time.monotonic() - started
        output = first + process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    if process.returncode != 0:
        raise Refused(text.strip().splitlines()[-1] if text.strip() else f"exit code {process.returncode}")
    return output, text, first_s, usage.ru_maxrss / 1000


class Generate:
    name = "generate"

    def __init__(self, program, model, threads, extra):
        self.command = [program, "--model", model, "--threads", str(threads), "--ignore-eos", *extra]

    def run(self, case, prompt_file):
        command = [*self.command, "--file", prompt_file, "--max-tokens", str(case.new), "--kv-dtype", case.kv, "--stats"]
        _, text, first_s, peak = timed(command)
        prefill = re.search(r"prefill (\d+) tokens in (\S+) s", text)
        decode = re.search(r"decode (\d+) tokens in (\S+) s", text)
        steps = int(decode[1])
        return Run(
            prefill=int(prefill[1]) / float(prefill[2]),
            decode=steps / float(decode[2]) if steps > 1 else None,
            first_s=first_s,
            peak_mb=peak,
            prompt_tokens=int(prefill[1]),
        )

    def tokens(self, text):
        out, _, _, _ = timed([self.command[0], *self.command[1:3], "--tokenize", "--prompt", text])
        return len(json.loads(out))


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, program, model, threads):
        self.command = [program, "-m", model, "-t", str(threads), "--temp", "0", "--ignore-eos", "-no-cnv", "--no-warmup"]
        self.command += ["--no-display-prompt"]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(program).parent)}

    def run(self, case, prompt_file):
        kv = {"q8": "q8_0"}.get(case.kv, case.kv)
        command = [*self.command, "-f", prompt_file, "-n", str(case.new), "-c", "8192", "-ctk", kv, "-ctv", kv]
        _, text, first_s, peak = timed(command, self.environment)
        prefill = re.search(r"prompt eval time =\s+(\S+) ms /\s+(\d+) tokens", text)
        decode = prefill and re.search(r" eval time =\s+(\S+) ms /\s+(\d+) runs", text[prefill.end() :])
        if not decode:
            raise Refused(f"no times in {text[-500:]!r}")
        steps = int(decode[2])
        return Run(
            prefill=int(prefill[2]) / float(prefill[1]) * 1000,
            decode=steps / float(decode[1]) * 1000 if steps > 1 and float(decode[1]) > 0 else None,
            first_s=first_s,
            peak_mb=peak,
            prompt_tokens=int(prefill[2]),
        )


def llama_completion(folder):
    """The program, built in the folder unless it is there."""
    program = folder / "build" / "bin" / "llama-completion"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building llama.cpp in {folder}", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    archives = list(folder.glob("llama_cpp_python-*.tar.gz"))
    if not archives:
        subprocess.run([*pip, "--no-binary", "llama-cpp-python", "--dest", folder, PACKAGE], check=True, stdout=sys.stderr)
        archives = list(folder.glob("llama_cpp_python-*.tar.gz"))
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder)
    source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    options = [f"-DLLAMA_{name}=OFF" for name in CMAKE_OPTIONS]
    configure = ["cmake", "-S", source, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release", *options]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    build = ["cmake", "--build", folder / "build", "--target", "llama-completion", "-j", str(os.cpu_count() or 1)]
    subprocess.run(build, check=True, stdout=sys.stderr)
    return program


def prompt_of(generate, tokens):
    """A text of so many tokens, or a few less."""
    if tokens == 0:
        return SHORT_PROMPT
    words = (TEXT * (tokens // 20 + 1)).split()
    fits, too_many = 1, len(words) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if generate.tokens(" ".join(words[:middle])) <= tokens:
            fits = middle
        else:
            too_many = middle
    return " ".join(words[:fits])


def measure(case, programs, rounds, folder):
    prompt_file = folder / f"{case.name}.txt"
    prompt_file.write_text(prompt_of(programs[0], case.past))
    runs = {program.name: [] for program in programs}
    for _ in range(rounds):
        for program in programs:
            if runs[program.name] is None:
                continue
            try:
                runs[program.name].append(program.run(case, str(prompt_file)))
            except Refused as why:
                print(f"{case.name}: {program.name} refuses: {why}", file=sys.stderr)
                runs[program.name] = None
    return runs


def median(runs, field):
    values = [getattr(run, field) for run in runs or [] if getattr(run, field) is not None]
    return statistics.median(values) if values else None


# Which figures of a case are worth a line: field, what it is called, whether more is better.
def figures_of(case):
    if case.name == "start":
        return [("first_s", "time to first token, s", False), ("peak_mb", "peak memory, MB", False)]
    figures = [("decode", f"decode behind {case.past} tokens, {case.kv}, tokens/s", True)]
    if case.name == "decode":
        figures = [("decode", "decode, tokens/s", True), ("peak_mb", "peak memory with decode, MB", False)]
    elif case.name.startswith("prefill"):
        figures = [("prefill", f"prefill({case.past}), tokens/s", True)]
    elif case.past >= 4096:
        figures += [("prefill", f"prefill({case.past}), {case.kv}, tokens/s", True), ("peak_mb", f"peak memory, {case.past}, {case.kv}, MB", False)]
    return figures


def number(value):
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def report(case, ours, theirs):
    lines = []
    for field, title, more_is_better in figures_of(case):
        mine, peer = median(ours, field), median(theirs, field)
        ratio = None
        if mine and peer:
            ratio = mine / peer if more_is_better else peer / mine
        lines.append({"case": case.name, "figure": title, "generate": mine, "llama_cpp": peer, "ratio": ratio})
        print(f"{title:<44} {number(mine):>9} {number(peer):>11} {number(ratio):>7}", flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("generate")
    parser.add_argument("model")
    parser.add_argument("folder", type=Path, help="where llama.cpp is, or is to be built; outside the source tree")
    parser.add_argument("--llama-completion", type=Path, help="a program that is built already")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES], choices=[case.name for case in CASES])
    parser.add_argument("--activations", default=None, help="passed on to generate")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()

    extra = ["--activations", args.activations] if args.activations else []
    peer_program = args.llama_completion or llama_completion(args.folder.resolve())
    programs = (
        Generate(args.generate, args.model, args.threads, extra),
        LlamaCpp(str(peer_program), args.model, args.threads),
    )
    print(f"{Path(args.model).name}, {args.threads} threads, medians of {args.rounds} alternating runs")
    print(f"{'':<44} {'generate':>9} {'llama.cpp':>11} {'ratio':>7}", flush=True)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if case.name not in args.cases:
                continue
            runs = measure(case, programs, args.rounds, Path(folder))
            lines += report(case, runs["generate"], runs["llama.cpp"])
            if args.json:  # after each case, as some take minutes
                content = {"model": Path(args.model).name, "threads": args.threads, "rounds": args.rounds, "figures": lines}
                args.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
