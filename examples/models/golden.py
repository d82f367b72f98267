#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the continuations that fables.gguf must give, as JSON for the tests.

    /tmp/train-venv/bin/python golden.py > ../../tests/data/fables_golden.json

This is a second, independent implementation of the model: plain numpy in
float32, from the F16 weights as they stand in the file.  With --torch it also
compares its logits with those of the model that train.py trains.
"""

import argparse
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import tokenizers

MODEL = Path(__file__).resolve().parent / "fables.gguf"
NEW_TOKENS = 48
# Where the two best logits are closer than this, another order of additions
# may choose the other token: such a case would test nothing.
MARGIN = 1e-3
PROMPTS = {
    "en_once": "Once upon a time",
    "en_lion": "A Lion",
    "en_fox": "The Fox",
    "fr_wolf": "Un Loup",
    "fr_crow": "Maître Corbeau",
    "fr_oak": "Le Chêne un jour",
    "fr_death": "La Mort",
    "zh_three_characters": "人之初",
    "zh_thousand_characters": "天地玄黃",
}
HOW = (
    "golden.py: numpy, float32 arithmetic on the F16 weights read from the file; "
    "greedy, no token put before the prompt, 48 tokens or up to the end token; "
    "the two best logits differ by at least 1e-3 at every step; text is the "
    "decoded greedy_ids, U+FFFD for a character cut off at the end"
)


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.meta = {key: field.contents() for key, field in reader.fields.items()}
        # GGUFReader gives matrices as [rows, columns]: y = W x.
        self.weights = {t.name: t.data.astype(np.float32) for t in reader.tensors}

    def __getitem__(self, key):
        return self.meta["llama." + key]

    def block(self, layer, name):
        return self.weights[f"blk.{layer}.{name}.weight"]

    def norm(self, x, weight):
        eps = np.float32(self["attention.layer_norm_rms_epsilon"])
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return x * scale * weight

    def rope(self, x):
        """x is [position, head, dim]; (x[2i], x[2i+1]) is one complex number."""
        dim = x.shape[-1]
        frequency = self["rope.freq_base"] ** (-np.arange(0, dim, 2) / dim)
        angle = np.arange(len(x))[:, None] * frequency
        turn = np.exp(1j * angle).astype(np.complex64)[:, None, :]
        return (np.ascontiguousarray(x).view(np.complex64) * turn).view(np.float32)

    def attention(self, x, layer):
        heads, kv_heads = self["attention.head_count"], self["attention.head_count_kv"]
        length = len(x)
        q = self.rope((x @ self.block(layer, "attn_q").T).reshape(length, heads, -1))
        k = self.rope((x @ self.block(layer, "attn_k").T).reshape(length, kv_heads, -1))
        v = (x @ self.block(layer, "attn_v").T).reshape(length, kv_heads, -1)
        future = np.triu(np.ones((length, length), dtype=bool), 1)
        out = np.empty_like(q)
        for head in range(heads):
            shared = head * kv_heads // heads
            scores = q[:, head] @ k[:, shared].T / np.sqrt(np.float32(q.shape[-1]))
            scores[future] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out[:, head] = weights @ v[:, shared]
        return out.reshape(length, -1) @ self.block(layer, "attn_output").T

    def feed_forward(self, x, layer):
        gate = x @ self.block(layer, "ffn_gate").T
        hidden = gate / (1 + np.exp(-gate)) * (x @ self.block(layer, "ffn_up").T)
        return hidden @ self.block(layer, "ffn_down").T

    def logits(self, ids):
        """The logits after the last of `ids`; all positions are computed anew."""
        embedding = self.weights["token_embd.weight"]
        x = embedding[ids]
        for layer in range(self["block_count"]):
            x = x + self.attention(self.norm(x, self.block(layer, "attn_norm")), layer)
            x = x + self.feed_forward(self.norm(x, self.block(layer, "ffn_norm")), layer)
        return embedding @ self.norm(x[-1], self.weights["output_norm.weight"])


def make_tokenizer(meta):
    """The tokenizer, too, is made from nothing but the file."""
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokens[meta["tokenizer.ggml.eos_token_id"]]])
    return tokenizer


def greedy(model, prompt_ids):
    """Return the greedy continuation and its smallest lead over the second best."""
    ids, lead = list(prompt_ids), np.inf
    end = model.meta["tokenizer.ggml.eos_token_id"]
    while len(ids) < len(prompt_ids) + NEW_TOKENS and ids[-1] != end:
        logits = model.logits(ids)
        second, best = np.argsort(logits)[-2:]
        lead = min(lead, logits[best] - logits[second])
        ids.append(int(best))
    return ids[len(prompt_ids) :], lead


def torch_difference(model, sequences):
    """The largest difference between these logits and train.py's."""
    import torch
    from train import Config, Llama

    reference = Llama(Config())
    reference.load_state_dict({k: torch.from_numpy(v) for k, v in model.weights.items()})
    worst = 0.0
    for ids in sequences:
        with torch.no_grad():
            expected = reference(torch.tensor([ids]))[0, -1].numpy()
        worst = max(worst, np.abs(model.logits(ids) - expected).max())
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=MODEL)
    parser.add_argument("--torch", action="store_true", help="compare with train.py")
    args = parser.parse_args()

    model = Model(args.model)
    tokenizer = make_tokenizer(model.meta)
    cases = []
    for name, prompt in PROMPTS.items():
        prompt_ids = tokenizer.encode(prompt).ids
        ids, lead = greedy(model, prompt_ids)
        print(f"{name}: smallest lead {lead:.4f}", file=sys.stderr)
        if lead < MARGIN:
            sys.exit(f"{name}: the two best logits are too close; change the prompt")
        case = {"name": name, "prompt": prompt, "prompt_ids": prompt_ids, "greedy_ids": ids}
        cases.append(case | {"text": tokenizer.decode(ids, skip_special_tokens=True)})
    if args.torch:
        sequences = [case["prompt_ids"] + case["greedy_ids"] for case in cases]
        print(f"torch differs by {torch_difference(model, sequences):.2e}", file=sys.stderr)
    golden = {"model": args.model.name, "how": HOW, "cases": cases}
    print(json.dumps(golden, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
