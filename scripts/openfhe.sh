#!/usr/bin/env bash
# Prepare .openfhe/: a virtual environment whose interpreter loads OpenFHE (CPython 3.12 or 3.10, whichever the C library
# suits). Does nothing where one is there and works. Use: scripts/openfhe.sh [folder]
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-.openfhe}
probe='import numpy, openfhe; openfhe.CCParamsBGVRNS()'

works() { "$1" -I -c "$probe" >/dev/null 2>&1; }

if [ -x "$target/bin/python" ] && works "$target/bin/python"; then
  echo "openfhe: $target works"
  exit 0
fi
shopt -s nullglob
tried=0
# The 3.12 wheels want C library 2.38, those for 3.10 content themselves with 2.35: begin with the likelier one.
order="3.12 3.10"
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2 || true)
if [ -n "$libc" ] && [ "$(printf '%s\n2.38\n' "$libc" | sort -V | head -n 1)" != 2.38 ]; then order="3.10 3.12"; fi
candidates=(${FEDSIM_OPENFHE_PYTHON:-})
for version in $order; do
  candidates+=("python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python)
done
for python in "${candidates[@]}"; do
  "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || continue
  tried=$((tried + 1))
  echo "openfhe: trying $python ($("$python" -c 'import sys; print(sys.version.split()[0])'))"
  "$python" -m venv --clear "$target"
  if "$target/bin/python" -m pip install --quiet --disable-pip-version-check 'openfhe>=1.4,<2' 'numpy>=1.26' &&
    works "$target/bin/python"; then
    echo "openfhe: ready in $target"
    exit 0
  fi
  "$target/bin/python" -I -c "$probe" 2>&1 | tail -n 1 || true
  rm -rf "$target"
done
echo "openfhe: none of $tried interpreters loads it; install CPython 3.12 (C library 2.38 or later) or 3.10 (2.35)" >&2
exit 1
