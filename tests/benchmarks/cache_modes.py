#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a KV cache is for: the time of new tokens with a contiguous cache and without any, on the same ids.

    cache_modes.py GENERATE [--model FILE] [--tokens N] [--threads N] [--least RATIO]

Ends with 1 unless the cache is at least RATIO times as fast.
"""

import argparse
import json
import subprocess
import sys

PROMPT = "Once upon a time"


def measure(args, cache):
    command = [args.generate, "--prompt", PROMPT, "--max-tokens", str(args.tokens), "--ignore-eos", "--json"]
    command += ["--kv-dtype", "f32", "--cache", cache]
    command += ["--model", args.model] if args.model else []
    command += ["--threads", str(args.threads)] if args.threads else []
    out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    seconds = out["timings"]["prefill_s"] + out["timings"]["decode_s"]
    rows = out["stats"]["forward_rows"]
    print(f"{cache:<11} {seconds:8.3f} s  {len(out['ids']) / seconds:9.1f} tokens/s  {rows} rows through the model", flush=True)
    return out["ids"], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("generate")
    parser.add_argument("--model", help="a GGUF file (the bundled model)")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--least", type=float, default=5.0, help="the ratio that must be reached")
    args = parser.parse_args()

    ids_without, without = measure(args, "none")
    ids_with, with_cache = measure(args, "contiguous")
    ratio = without / with_cache
    same = ids_without == ids_with
    print(f"the cache is {ratio:.1f} times as fast (at least {args.least:g}), {'same ids' if same else 'OTHER IDS'}")
    return 0 if same and ratio >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())
