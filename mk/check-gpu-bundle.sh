#!/bin/sh
# usage: check-gpu-bundle.sh ARCHIVE PYTHON | check-gpu-bundle.sh none
# Unpacks the archive elsewhere and runs its own look at the machine, with nothing of this tree in the environment.
set -eu
[ "$1" = none ] && { echo "gpu-bundle: 0 passed, 0 failed, 1 skipped"; exit 0; }
archive=$PWD/$1 python=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
folder=$(mktemp -d "${TMPDIR:-/tmp}/dtg.XXXXXX")
trap 'rm -rf "$folder"' EXIT
tar -xzf "$archive" -C "$folder"
cd "$folder"/dtorch-gpu-*
env -i PATH=/usr/bin:/bin TMPDIR="$folder" OMP_NUM_THREADS=1 PYTHON="$python" ./start
