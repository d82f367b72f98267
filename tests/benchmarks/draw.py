#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what run.py measured, and the comparison that peer.py wrote if it is there, as SVG pictures.

    draw.py FOLDER

Reads FOLDER/benchmarks.json and FOLDER/peer.json; writes decode.svg, types.svg, text_and_sampler.svg and peer.svg there.
"""

import json
import math
import sys
from html import escape
from pathlib import Path

WIDTH = 760
# Colours that people tell apart who see few; the pictures bring their own background.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
OURS, THEIRS = COLOURS[0], "#999999"

# Other programs' costs, measured once on two cores of Zen 4: Hugging Face tokenizers' DecodeStream, a token; llama.cpp's
# sampler chain at 131,072 ids, a choice.
DECODE_STREAM_NS = 635
LLAMA_CPP_US = {"greedy": 142, "top-k 40 + top-p 0.95": 122, "min-p 0.05": 219, "top-p 0.95 alone": 7900}

SHAPES = {"9-3x64": "9 query, 3 kv heads of 64", "32-8x128": "32 query, 8 kv heads of 128"}
TYPES = ("float", "half", "bfloat16", "int8")
LEVELS = ("portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16")


class Picture:
    def __init__(self):
        self.parts = []

    def rect(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{colour}"/>')

    def line(self, x1, y1, x2, y2, colour="#cccccc"):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>')

    def text(self, x, y, text, anchor="start", size=12, bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{weight}>{escape(text)}</text>')

    def legend(self, x, y, entries):
        for name, colour in entries:
            self.rect(x, y - 10, 11, 11, colour)
            self.text(x + 16, y, name)
            x += 36 + 7 * len(name)

    def write(self, path, height):
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
        head += ' font-family="sans-serif" fill="#222222">'
        background = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
        path.write_text("\n".join([head, background, *self.parts, "</svg>"]) + "\n")


def short(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def find(lines, **keys):
    """The one line with these keys; None if it was not measured."""
    return next((line for line in lines if all(line.get(key) == value for key, value in keys.items())), None)


def decode(lines, machine, path):
    """Share of the read bandwidth: a group of bars for each type, a bar for each level; a panel for each shape."""
    picture = Picture()
    picture.text(20, 26, "One decode step's attention, 8192 positions, one thread", bold=True, size=15)
    picture.text(20, 45, f"read speed as a share of the best plain reading in the same run; {machine}")
    panel, top, bottom = (WIDTH - 60) / 2, 100, 320
    colours = dict(zip(LEVELS, COLOURS))
    picture.legend(60, 70, [(level, colours[level]) for level in LEVELS])
    for n, (shape, title) in enumerate(SHAPES.items()):
        left = 50 + n * panel
        picture.text(left + panel / 2 - 15, top - 10, title, "middle")
        for percent in (0, 25, 50, 75, 100):
            y = bottom - (bottom - top) * percent / 110
            picture.line(left, y, left + panel - 30, y)
            picture.text(left - 5, y + 4, f"{percent} %", "end", 11)
        group = (panel - 30) / len(TYPES)
        for i, dtype in enumerate(TYPES):
            bars = [find(lines, what="decode", shape=shape, type=dtype, s=8192, threads=1, level=level) for level in LEVELS]
            bars = [bar for bar in bars if bar]
            width = min(18, (group - 8) / max(len(bars), 1))
            x = left + i * group + (group - width * len(bars)) / 2
            for bar in bars:
                height = (bottom - top) * min(bar["share"], 1.1) / 1.1
                picture.rect(x, bottom - height, width - 2, height, colours[bar["level"]])
                picture.text(x + width / 2 - 1, bottom - height - 3, f"{100 * bar['share']:.0f}", "middle", 10)
                x += width
            picture.text(left + (i + 0.5) * group, bottom + 16, dtype, "middle")
    picture.write(path, bottom + 32)


def bars(picture, y, rows, scale, unit):
    """Horizontal bars with names before and numbers behind them; rows are (name, value, colour). Returns the next y."""
    left, right = 240, WIDTH - 110
    for name, value, colour in rows:
        picture.text(left - 8, y + 12, name, "end")
        width = (right - left) * scale(value)
        picture.rect(left, y, width, 15, colour)
        picture.text(left + max(width, 0) + 5, y + 12, f"{short(value)} {unit}")
        y += 20
    return y


def types(lines, machine, path):
    """Decode steps a second of each type at the level that the library chooses and of plain Eigen, relative to half."""
    picture = Picture()
    picture.text(20, 26, "Attention steps a second, relative to half", bold=True, size=15)
    picture.text(20, 45, f"8192 positions, one thread, each type at the level that the library chooses; {machine}")
    y = 76
    for shape, title in SHAPES.items():
        rows = []
        for dtype in TYPES:
            found = [find(lines, what="decode", shape=shape, type=dtype, s=8192, threads=1, level=level) for level in LEVELS]
            rows.append((dtype, [line["positions/s"] for line in found if line][-1], OURS))
        base = rows[1][1]
        for flags, name in (("none", "plain Eigen"), ("native", "Eigen, -march=native")):
            for dtype in TYPES:
                line = find(lines, what="eigen_decode", shape=shape, type=dtype, flags=flags)
                if line:
                    rows.append((f"{name}, {dtype}", line["positions/s"], THEIRS))
        rows = [(name, value / base, colour) for name, value, colour in rows]
        largest = max(value for _, value, _ in rows)
        picture.text(240, y, title)
        y = bars(picture, y + 8, rows, lambda value: value / largest, "×") + 26
    picture.text(20, y - 10, "Plain Eigen casts what is not float; it is compiled as tinyllm is, and once more for this processor alone.", size=11)
    picture.write(path, y + 4)


def text_and_sampler(lines, machine, path):
    picture = Picture()
    picture.text(20, 26, "A token's way to text, and its choice", bold=True, size=15)
    picture.text(20, 45, machine)
    y = 76
    rows = []
    for name, keys in {
        "decoder, by bytes": {"what": "decoder_by_bytes", "tokens": 1000000, "printable": 1},
        "decoder, through the window": {"what": "decoder_through_window", "tokens": 1000000, "printable": 1},
        "stream, no stop string": {"what": "stream_with_stops", "stops": 0},
        "stream, 1 stop string": {"what": "stream_with_stops", "stops": 1},
        "stream, 20 stop strings": {"what": "stream_with_stops", "stops": 20},
        "stream, 1000 stop strings": {"what": "stream_with_stops", "stops": 1000},
    }.items():
        line = find(lines, **keys)
        if line:
            rows.append((name, line["ns_a_token"], OURS))
    rows.append(("Hugging Face DecodeStream", DECODE_STREAM_NS, THEIRS))
    largest = max(value for _, value, _ in rows)
    picture.text(240, y, "ids to text, ns a token")
    y = bars(picture, y + 8, rows, lambda value: value / largest, "ns") + 26

    rows = []
    cases = ("greedy_logprob", "top_k_top_p", "min_p", "top_p")
    best = {"what": "sampler", "vocabulary": 131072, "logits": "peaked"}
    for case, (name, theirs) in zip(cases, LLAMA_CPP_US.items()):
        found = [line["us_a_token"] for level in LEVELS[1:] if (line := find(lines, **best, case=case, level=level))]
        if found:
            rows.append((name, min(found), OURS))
        rows.append(("llama.cpp, " + name, theirs, THEIRS))
    least, most = 1, 10 ** math.ceil(math.log10(max(value for _, value, _ in rows)))
    picture.text(240, y, "choosing among 131,072 ids, µs a token, logarithmic; ours with the log-probability")
    left, right = 240, WIDTH - 110
    power = 1
    while power <= most:
        x = left + (right - left) * math.log(power / least) / math.log(most / least)
        picture.line(x, y + 8, x, y + 8 + 20 * len(rows))
        picture.text(x, y + 22 + 20 * len(rows), short(power), "middle", 11)
        power *= 10
    y = bars(picture, y + 8, rows, lambda value: math.log(max(value, least) / least) / math.log(most / least), "µs") + 40
    picture.text(20, y - 10, "The other programs' numbers (grey) were measured once on two cores of Zen 4, not in this run.", size=11)
    picture.write(path, y + 4)


def peer(content, path):
    """A pair of bars for each figure, the larger one of each pair full, and the ratio beside it."""
    rows = [line for line in content["figures"] if line["ratio"]]
    picture = Picture()
    picture.text(20, 26, f"generate beside llama.cpp, {content['model']}, {content['threads']} threads", bold=True, size=15)
    picture.text(20, 45, f"medians of {content['rounds']} alternating runs; a ratio above 1 says that generate is better")
    picture.legend(300, 70, [("generate", OURS), ("llama.cpp", THEIRS)])
    picture.text(WIDTH - 20, 70, "ratio", "end")
    left, right, y = 300, WIDTH - 150, 84
    for line in rows:
        largest = max(line["generate"], line["llama_cpp"])
        picture.text(left - 8, y + 17, line["figure"], "end")
        for i, (who, colour) in enumerate((("generate", OURS), ("llama_cpp", THEIRS))):
            width = (right - left) * line[who] / largest
            picture.rect(left, y + 13 * i, width, 12, colour)
            picture.text(left + width + 5, y + 10 + 13 * i, short(line[who]), size=11)
        picture.text(WIDTH - 20, y + 17, f"{line['ratio']:.2f}", "end", bold=True)
        y += 36
    picture.write(path, y + 6)


def main():
    folder = Path(sys.argv[1])
    content = json.loads((folder / "benchmarks.json").read_text())
    lines, context = content["benchmarks"], content["context"]
    machine = f"{context['processor']}, {context['cores']} cores, {context['level']}"
    decode(lines, machine, folder / "decode.svg")
    types(lines, machine, folder / "types.svg")
    text_and_sampler(lines, machine, folder / "text_and_sampler.svg")
    if (folder / "peer.json").exists():
        peer(json.loads((folder / "peer.json").read_text()), folder / "peer.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
