#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real model gives each prompt of a batch the answer that it gives it alone.

    check_batch.py GENERATE MODEL GOLDEN_JSON

Prompts are those of the golden file that are one line.
"""

import json
import sys
from pathlib import Path

from checks import Checks, run

PROMPTS = 8
SAME = ("text", "prompt_ids", "ids", "pieces", "logprobs", "finish_reason", "stop_kind", "matched_stop")
OPTIONS = {
    "greedy": (),
    "sampled": ("--temperature", "0.8", "--top-k", "40", "--top-p", "0.95", "--seed", "3"),
    "q8 cache": ("--kv-dtype", "q8"),
    "exact activations": ("--activations", "f32", "--kv-dtype", "f32"),
}


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    generate, model, golden = sys.argv[1:]
    prompts = [case["prompt"] for case in json.loads(Path(golden).read_text())["cases"]]
    prompts = [prompt for prompt in prompts if prompt.strip() and len(prompt.splitlines()) == 1 and len(prompt) < 1000]
    prompts = (prompts * PROMPTS)[:PROMPTS]
    checks = Checks()
    for name, options in OPTIONS.items():
        command = (generate, "--model", model, "--json", "--max-tokens", "48", *options)
        batch = run(*command, "--batch", "-", stdin="\n".join(prompts).encode())
        if not checks.that(f"{name}: a batch of {len(prompts)} runs", batch.code == 0, batch):
            continue
        results = batch.json()["results"]
        checks.equal(f"{name}: a result a prompt", len(results), len(prompts))
        for prompt, result in zip(prompts, results):
            alone = run(*command, "--prompt", prompt).json()
            checks.equal(f"{name}: as alone: {prompt[:30]!r}", [result[key] for key in SAME], [alone[key] for key in SAME])
    return checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
