#!/bin/sh
# What an installation needs from the system, all that is missing at once. Usage: check_build.sh PYTHON
python=$1
missing=0
say() {
    echo "missing: $1" >&2
    echo "  on Debian or Ubuntu: apt-get install $2" >&2
    missing=1
}
if [ -z "$python" ]; then
    say "Python 3.11, 3.12 or 3.13 (or name one: make PYTHON=/path/to/python)" "python3 python3-venv python3-dev"
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null || say "the venv module of $python" "python3-venv"
    "$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' \
        || say "the headers of $python (Python.h)" "python3-dev"
fi
command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || say "a C++20 compiler" "g++"
exit $missing
