#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the bundled fable model and write it as fables.gguf.

From this folder, with Python 3.11 or newer:

    python3 -m venv /tmp/train-venv
    /tmp/train-venv/bin/pip install torch tokenizers gguf
    OMP_WAIT_POLICY=passive /tmp/train-venv/bin/python train.py

The result depends only on the corpus, the options, the versions of torch and
tokenizers, the number of threads and the processor's kind.  torch is needed
here only: nothing that reads the model uses it.  See README.md beside this
file for the versions and the figures of the bundled file.
"""

import argparse
import json
import math
import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).resolve().parent
END = "<|endoftext|>"


@dataclass(frozen=True)
class Config:
    """The shape of the model.  Every matrix row is a multiple of 32 long."""

    vocab: int = 1536
    context: int = 512
    width: int = 128
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 384
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def head_dim(self):
        return self.width // self.heads


# --------------------------------------------------------------------------
# Corpus: each loader returns a list of documents, one string per document.
# --------------------------------------------------------------------------

# Words a title leaves in lower case.
SMALL_WORDS = set(
    "a an and as at by for from her his in into is its of on or over that the "
    "their to under who with without against".split()
)

# Slips of the English transcription.
ENGLISH_SLIPS = {
    'prison-house." Mercury and the Workmen': 'prison-house."\nMercury and the Workmen',
    "A Kion was": "A Lion was",
    "by st ropes": "by strong ropes",
    "came gnawed the rope": "came and gnawed the rope",
    "free, exclaim\n": "free, exclaiming,\n",
    "I now you know": "now you know",
    "to con benefits": "to confer benefits",
}


def is_english_title(line):
    """A short line of capitalised words with no punctuation at its end."""
    words = re.findall(r"[A-Za-z']+", line)
    return (
        bool(words)
        and len(line) < 60
        and line[-1] not in '.!?",;:'
        and all(w[0].isupper() or w in SMALL_WORDS for w in words)
    )


def load_english(path):
    """Split at the titles, drop them, and undo the hard line breaks of prose."""
    text = path.read_text(encoding="utf-8")
    for wrong, right in ENGLISH_SLIPS.items():
        text = text.replace(wrong, right)
    fables, current = [], []
    for line in map(str.strip, text.splitlines()):
        if is_english_title(line):
            fables.append(" ".join(current))
            current = []
        elif not line.startswith("---"):
            current.append(line)
    fables.append(" ".join(current))
    return [fable for fable in fables if fable]


def load_french(path, longest=3000):
    """Verse: keep the line breaks, drop the titles, tabs and blank lines.

    Pieces longer than `longest` characters are mostly tales and dedications
    rather than fables; a model this small is better off without them.
    """
    fables = []
    for piece in path.read_text(encoding="utf-8").split(END):
        lines = [line.strip() for line in piece.splitlines()]
        lines = [line for line in lines if line and not line.endswith(" - La Fontaine")]
        fables.append("\n".join(lines))
    return [fable for fable in fables if 0 < len(fable) <= longest]


def load_chinese(path):
    """One document per classic, without the title on the first line."""
    return [path.read_text(encoding="utf-8").split("\n", 1)[1].strip()]


def load_corpus(folder, held_out, seed):
    """Return (training documents, held-out documents).

    A few fables of each language are held out to measure how far the model
    generalises.  The two short Chinese classics are repeated so that they are
    learnt by heart among so much more English and French.
    """
    rng = random.Random(seed)
    train, held = [], []
    for fables in (
        load_english(folder / "aesop.en.txt"),
        load_french(folder / "la_fontaine.fr.txt"),
    ):
        rng.shuffle(fables)
        held += fables[:held_out]
        train += fables[held_out:]
    for name in ("san_zi_jing.zh.txt", "qian_zi_wen.zh.txt"):
        train += 4 * load_chinese(folder / name)
    return train, held


# --------------------------------------------------------------------------
# Tokenizer: byte-level BPE with GPT-2's pre-tokenisation
# --------------------------------------------------------------------------


def train_tokenizer(documents, vocab):
    """Learn the merges.  All 256 bytes are symbols, so every text encodes."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=sorted(byte_level.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode(tokenizer, documents):
    return [np.array(encoding.ids) for encoding in tokenizer.encode_batch(documents)]


# --------------------------------------------------------------------------
# Model: the Llama architecture
# --------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(config):
    """cos and sin of position * base^(-2i/head_dim), each [context, head_dim/2]."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    frequency = config.rope_base ** (-pairs / config.head_dim)
    angle = torch.arange(config.context, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """Turn each adjacent pair (x[2i], x[2i+1]) by its angle; x is [B, H, T, D]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        width, kv_width = config.width, config.kv_heads * config.head_dim
        self.attn_norm = RMSNorm(width, config.eps)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, kv_width, bias=False)
        self.attn_v = nn.Linear(width, kv_width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = RMSNorm(width, config.eps)
        self.ffn_gate = nn.Linear(width, config.ffn, bias=False)
        self.ffn_up = nn.Linear(width, config.ffn, bias=False)
        self.ffn_down = nn.Linear(config.ffn, width, bias=False)

    def attention(self, x, cos, sin):
        batch, length, _ = x.shape
        config = self.config

        def split(y, heads):
            return y.view(batch, length, heads, config.head_dim).transpose(1, 2)

        q = rotate(split(self.attn_q(x), config.heads), cos, sin)
        k = rotate(split(self.attn_k(x), config.kv_heads), cos, sin)
        v = split(self.attn_v(x), config.kv_heads)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.attn_output(out.transpose(1, 2).flatten(2))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attn_norm(x), cos, sin)
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    """Module names are chosen so that state_dict() has llama.cpp's tensor names."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocab, config.width)
        self.blk = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.output_norm = RMSNorm(config.width, config.eps)
        self.cos, self.sin = rope_tables(config)
        self.init_weights()

    def init_weights(self):
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Layers that add to the residual stream start smaller, so that
                # its variance does not grow with the depth.
                residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                scale = (2 * self.config.layers) ** -0.5 if residual else 1.0
                nn.init.normal_(weight, std=0.05 * scale)

    def forward(self, ids):
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, cos, sin)
        # The output matrix is the embedding itself (tied).
        return F.linear(self.output_norm(x), self.token_embd.weight)


# --------------------------------------------------------------------------
# Training
# --------------------------------------------------------------------------


def batches(documents, end_id, length, rows, rng):
    """Yield batches of `rows` windows of `length` + 1 ids, for ever.

    Half the windows are cut from all documents in a new random order; the
    others begin where a document begins, for that is where a prompt starts.
    """
    while True:
        order = rng.permutation(len(documents))
        parts = [np.append(documents[i], end_id) for i in order]
        starts = np.cumsum([0] + [len(part) for part in parts[:-1]])
        stream = np.concatenate(parts)
        cuts = np.arange(rng.integers(length), len(stream), length)
        # Every epoch sees the whole stream once, and as many document starts.
        pool = np.concatenate((cuts, rng.choice(starts, len(cuts))))
        pool = rng.permutation(pool[pool + length < len(stream)])
        for i in range(0, len(pool) - rows + 1, rows):
            window = pool[i : i + rows, None] + np.arange(length + 1)
            yield torch.from_numpy(stream[window])


def loss_of(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def mean_loss(model, documents, end_id):
    """Mean loss per token over whole documents, cut at the context length."""
    total = count = 0
    for ids in documents:
        batch = torch.from_numpy(np.append(ids, end_id)[None, : model.config.context + 1])
        predicted = batch.shape[1] - 1
        total += loss_of(model, batch).item() * predicted
        count += predicted
    return total / count


def make_optimizer(model, decay):
    """Weight decay on the matrices only: a decayed norm would shrink its layer."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99))


class Schedule:
    """Linear warm-up, a constant rate, and a linear cool-down to zero.

    The constant part does not depend on the number of steps, so a run may be
    told at any time to finish: interrupt it once (Ctrl-C) and it cools down.
    The number of steps it prints then repeats that very run.
    """

    def __init__(self, steps, peak, warmup=200, cooldown=1200):
        self.steps, self.peak, self.warmup, self.cooldown = steps, peak, warmup, cooldown
        self.step = 0
        signal.signal(signal.SIGINT, self.finish)

    def finish(self, *_):
        self.steps = min(self.steps, self.step + self.cooldown)
        print(f"finishing with --steps {self.steps}", flush=True)

    def rate(self):
        rise = (self.step + 1) / self.warmup
        fall = (self.steps - self.step) / self.cooldown
        return self.peak * min(1.0, rise, fall)


def train(model, documents, held, end_id, args, save):
    optimizer = make_optimizer(model, args.decay)
    schedule = Schedule(args.steps, args.rate)
    stream = batches(documents, end_id, args.length, args.rows, np.random.default_rng(args.seed))
    start, recent = time.time(), []
    while schedule.step < schedule.steps:
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate()
        loss = loss_of(model, next(stream))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step += 1
        recent.append(loss.item())
        if schedule.step % args.report == 0 or schedule.step == schedule.steps:
            seconds = time.time() - start
            print(
                f"step {schedule.step}/{schedule.steps}  train {np.mean(recent):.4f}"
                f"  held out {mean_loss(model, held, end_id):.4f}  {seconds:.0f} s",
                flush=True,
            )
            recent = []
            save(model)


# --------------------------------------------------------------------------
# GGUF
# --------------------------------------------------------------------------


def add_metadata(writer, config):
    writer.add_name("tinyllm fables")
    writer.add_description(
        "A tiny Llama trained on public-domain fables in English and French "
        "and two Chinese classics"
    )
    writer.add_license("Apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(config.vocab)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)


def add_vocabulary(writer, tokenizer):
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.get)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token == END else normal for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(ids[END])
    writer.add_eos_token_id(ids[END])
    writer.add_add_bos_token(False)


def write_gguf(path, model, tokenizer):
    """Matrices as F16, norms as F32; the file appears at once, whole."""
    partial = path.with_suffix(".part")
    writer = gguf.GGUFWriter(partial, "llama")
    add_metadata(writer, model.config)
    add_vocabulary(writer, tokenizer)
    for name, tensor in model.state_dict().items():
        kind = np.float16 if tensor.dim() == 2 else np.float32
        writer.add_tensor(name, tensor.numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, path)


def load_weights(model, path):
    """Take the weights of an earlier run of the same shape and corpus."""
    tensors = gguf.GGUFReader(path).tensors
    model.load_state_dict({t.name: torch.from_numpy(t.data.astype(np.float32)) for t in tensors})


# --------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train the bundled fable model.")
    parser.add_argument("--out", type=Path, default=HERE / "fables.gguf")
    parser.add_argument("--start", type=Path, help="go on from this GGUF file's weights")
    parser.add_argument("--steps", type=int, default=5709)
    parser.add_argument("--rows", type=int, default=2, help="windows per batch")
    parser.add_argument("--length", type=int, default=512, help="tokens per window")
    parser.add_argument("--rate", type=float, default=2.5e-3, help="peak learning rate")
    parser.add_argument("--decay", type=float, default=0.05, help="weight decay")
    parser.add_argument("--held-out", type=int, default=6, help="fables per language")
    parser.add_argument("--report", type=int, default=250, help="steps between reports")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)

    config = Config()
    train_texts, held_texts = load_corpus(HERE / "corpus", args.held_out, args.seed)
    tokenizer = train_tokenizer(train_texts, config.vocab)
    end_id = tokenizer.token_to_id(END)
    documents, held = encode(tokenizer, train_texts), encode(tokenizer, held_texts)
    model = Llama(config)
    if args.start:
        load_weights(model, args.start)
    print(
        f"{len(documents)} documents, {sum(map(len, documents))} tokens;"
        f" {sum(p.numel() for p in model.parameters())} parameters",
        flush=True,
    )
    train(model, documents, held, end_id, args, lambda m: write_gguf(args.out, m, tokenizer))
    print(f"{args.out}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
