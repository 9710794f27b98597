#!/bin/sh
# usage: venv.sh DIR REQUIREMENTS
# Makes the Python environment DIR hold what REQUIREMENTS names; asks no package index when it does already.
set -eu
dir=$1 wanted=$2
if cmp -s "$wanted" "$dir/requirements.txt"; then
    echo "deps: $dir holds what $wanted names"
    exit 0
fi
echo "deps: making $dir (LibTorch and what it needs, about 5 GB)"
"${PYTHON:-python3}" -m venv "$dir"
"$dir/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar off --requirement "$wanted"
cp "$wanted" "$dir/requirements.txt"
