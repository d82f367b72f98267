#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real model gives the ids, logits and likelihoods that another implementation computed.

    check_golden.py GENERATE MODEL GOLDEN_JSON

The golden file says how its numbers were made. Its greedy ids may end with the end token, which the program prints only
with --ignore-eos.
"""

import json
import sys
from pathlib import Path

from checks import Checks, run

EXTRA_LOGITS = 20  # at the end of the list two that are close may have changed places

ROUNDED_NLL_TOLERANCE = 0.01  # what activations or a cache of eight bits may cost, in nats a token
HALVED_NLL_TOLERANCE = 0.001  # what a cache of sixteen bits may


def largest_difference(expected, actual):
    found = dict(map(tuple, actual))
    return max(abs(logit - found.get(token, float("inf"))) for token, logit in expected)


class Golden:
    def __init__(self, generate, model, golden):
        self.command = (generate, "--model", model, "--json")
        self.logit_tolerance = golden["logit_tolerance"]
        self.nll_tolerance = golden["nll_tolerance"]
        self.checks = Checks()

    def json(self, case, cache, *arguments, kv="f32"):
        result = run(*self.command, "--prompt", case["prompt"], "--cache", cache, "--kv-dtype", kv, *arguments, timeout=1800)
        if not self.checks.that(f"{case['name']}, cache {cache}: runs", result.code == 0, result, quiet=True):
            return None
        return result.json()

    def greedy(self, case, cache):
        name = f"{case['name']}, cache {cache}"
        expected = case["greedy_ids"]
        out = self.json(case, cache, "--ignore-eos", "--activations", "f32", "--max-tokens", str(len(expected)), "--top-logits", str(len(case["top_logits"]) + EXTRA_LOGITS))
        if out is None:
            return
        self.checks.equal(f"{name}: prompt ids", out["prompt_ids"], case["prompt_ids"])
        self.checks.equal(f"{name}: greedy ids", out["ids"], expected)
        difference = largest_difference(case["top_logits"], out["prompt_logits"])
        self.checks.that(f"{name}: logits within {difference:.6f}", difference <= self.logit_tolerance, difference)

    def likelihood(self, case, cache, activations, tolerance):
        out = self.json(case, cache, "--score", "--activations", activations)
        if out is None:
            return
        difference = abs(out["nll"] - case["nll"])
        name = f"{case['name']}, cache {cache}, activations {activations}"
        self.checks.that(f"{name}: nll within {difference:.6f}", difference <= tolerance, out["nll"])

    def cache_costs(self, case):
        """What storing keys and values in fewer bits changes of the likelihood, all else being exact."""
        for cache in ("contiguous", "paged"):
            nll = {kv: self.json(case, cache, "--score", "--activations", "f32", kv=kv)["nll"] for kv in ("f32", "f16", "bf16", "q8")}
            for kv, tolerance in (("f16", HALVED_NLL_TOLERANCE), ("bf16", ROUNDED_NLL_TOLERANCE), ("q8", ROUNDED_NLL_TOLERANCE)):
                difference = nll[kv] - nll["f32"]
                self.checks.that(f"{case['name']}, cache {cache}: {kv} costs {difference:.6f} nats", abs(difference) <= tolerance, nll)


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    content = json.loads(Path(sys.argv[3]).read_text())
    golden = Golden(sys.argv[1], sys.argv[2], content)
    for case in content["cases"]:
        for cache in ("contiguous", "paged", "none"):
            golden.greedy(case, cache)
            if "nll" in case:
                golden.likelihood(case, cache, "f32", golden.nll_tolerance)
                golden.likelihood(case, cache, "q8", ROUNDED_NLL_TOLERANCE)
        if "nll" in case:
            golden.cache_costs(case)
    return golden.checks.exit_code()


if __name__ == "__main__":
    sys.exit(main())
