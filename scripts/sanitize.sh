#!/usr/bin/env bash
# Build the compiled module under AddressSanitizer and UndefinedBehaviorSanitizer into build/sanitized, and run its tests
# (stored vectors, properties, damaged input) with it. Any finding ends the run. Use: scripts/sanitize.sh [pytest's words]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
into=build/sanitized
prefix=$("$python" -m nanobind --cmake_dir)
cmake=$(dirname "$python")/cmake
[ -x "$cmake" ] || cmake=cmake
"$cmake" -S . -B "$into" -DFEDSIM_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DPython_EXECUTABLE="$(realpath -s "$python")" -Dnanobind_ROOT="$prefix" >"$into.log" 2>&1 ||
  { tail -n 20 "$into.log" >&2; exit 1; }
"$cmake" --build "$into" -j "$(nproc)" >>"$into.log" 2>&1 || { tail -n 40 "$into.log" >&2; exit 1; }
module=$(ls "$into"/_native*.so)
compiler=${CXX:-c++}
# The interpreter itself is not instrumented: the runtime has to be there before it, and libstdc++ for its exceptions.
export LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so.6)"
# The interpreter leaves memory to the system when it ends, which is no leak of ours.
export ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:strict_string_checks=1:detect_stack_use_after_return=1"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1"
export FEDSIM_SANITIZED_MODULE="$module" OMP_NUM_THREADS=1
if (($# == 0)); then set -- tests/crypto/test_prg.py tests/crypto/preamble tests/crypto/rlwe; fi
exec "$python" -m pytest -q -p tests.sanitized "$@"
