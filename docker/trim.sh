#!/bin/sh
# Remove from a virtual environment what no service of a deployment reads: headers, tests, the installer uv.
set -eu
packages=$(echo "$1"/lib/python3.*/site-packages)
rm -rf "$packages"/torch/include "$packages"/torch/share "$packages"/torch/test "$packages"/pyarrow/include "$1"/bin/uv "$1"/bin/uvx
find "$packages"/torch/bin -type f -not -name torch_shm_manager -delete
find "$packages" -type d \( -name tests -o -name test \) -not -path '*/torch/*' -prune -exec rm -rf {} +
