#!/bin/sh
# usage: check-torch.sh BACKEND | check-torch.sh none
# Compares the torch backend with the PyTorch of build/venv, which must be the one that it was built with.
set -u
python=build/venv/bin/python
if [ "$1" = none ] || ! [ -x $python ]; then
    echo "torch-backend: LibTorch or $python was not found (make deps), so there is nothing to compare with"
    echo "torch-backend: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec $python tests/python/torch_backend.py "$1"
