#!/usr/bin/env bash
# Builds sdist and wheel into dist/, installs the wheel into an empty environment, and runs the demo in small from there,
# outside of the repository. Usage: check_dist.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1")
root=$PWD

rm -rf dist
# The wheel is built from the sdist, so that both are proven.
"$python" -m build --outdir dist .
if "$python" -m zipfile -l dist/*.whl | grep -E 'experiments/results/|crypto/native/|tests/|\.(key|tenseal|pickle)$'; then
    echo "the wheel holds files that do not belong there: see wheel.exclude in pyproject.toml" >&2
    exit 1
fi

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet -c constraints.txt dist/*.whl
cd "$place"
PATH="$place/venv/bin:$PATH" PYTHONPATH='' sh -euc '
    fedsim --version
    fedsim run --rounds 1 --clients 4 --name demo
    fedsim run --rounds 1 --clients 4 --name sealed --protection rlwe
    fedsim new my_project
    cd my_project && fedsim run pyproject.toml --name project --quiet'
test -s "$place/runs/demo/report.html"
"$place/venv/bin/fedsim" doctor --run "$root"/dist/*.whl
echo "the wheel works outside of the repository"
