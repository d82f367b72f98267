#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Links a baseline file and one compiled for AVX-512 into one program, in both orders, and runs it; then looks into the
# program: code that the baseline file chose for an old processor must not use newer registers. At last, a baseline file that
# leaves the kernels to a compiled library must not link with the one compiled for AVX-512.
#     check.sh COMPILER INCLUDE_DIR EIGEN_DIR WORK_DIR
set -eu
compiler=$1 include=$2 eigen=$3 work=$4
here=$(dirname "$0")
mkdir -p "$work"
flags="-std=c++20 -O2 -I$include -isystem $eigen"
wide="-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl"
$compiler $flags -c "$here/baseline.cpp" -o "$work/baseline.o"
$compiler $flags $wide -c "$here/wide.cpp" -o "$work/wide.o"
$compiler $flags -c "$here/main.cpp" -o "$work/main.o"
$compiler "$work/main.o" "$work/baseline.o" "$work/wide.o" -o "$work/baseline_first"
$compiler "$work/main.o" "$work/wide.o" "$work/baseline.o" -o "$work/wide_first"
for program in baseline_first wide_first; do
  "$work/$program"
  # Symbols of the baseline file are in the namespace built_0000000; at level portable they use xmm alone, at avx2 no zmm.
  objdump -d --no-show-raw-insn "$work/$program" | awk -v program="$program" '
    /^[0-9a-f]+ <.*>:$/ { name = $2; old = name ~ /built_0000000/; plain = old && name ~ /8portable/; avx2 = old && name ~ /4avx2/; next }
    plain && /%[yz]mm/ { bad[name] = 1 }
    avx2 && /%zmm|%[xy]mm(1[6-9]|2[0-9]|3[01])/ { bad[name] = 1 }
    old && !plain && !avx2 && name !~ /[0-9]avx512/ && /%[yz]mm/ { bad[name] = 1 }
    { if (plain) n_plain++; if (avx2) n_avx2++ }
    END {
      for (f in bad) { print program ": instructions too new in " f; failed = 1 }
      if (n_plain < 100 || n_avx2 < 100) { print program ": found no kernels to look at"; failed = 1 }
      exit failed
    }'
done

$compiler $flags -O0 -DTINYLLM_COMPILED -c "$here/baseline.cpp" -o "$work/user.o"
if $compiler "$work/main.o" "$work/user.o" "$work/wide.o" -o "$work/mismatch" 2>"$work/mismatch.log"; then
  echo "mismatch: a baseline file has linked with kernels for AVX-512"
  exit 1
fi
grep -q 'undefined reference.*built_0000000::.*attention_kernels' "$work/mismatch.log" || {
  cat "$work/mismatch.log"
  exit 1
}
