#!/bin/sh
# usage: check-pip.sh FOLDER own|newest
# `pip install ./client/python` from a fresh clone of what is committed, into an environment of its own, and a program that uses
# the device from there. own: with the torch of build/venv; newest: with the newest release of PyTorch, which is fetched.
set -eu
folder=$PWD/$1 which=$2 root=$PWD
rm -rf "$folder/source"
[ -x "$folder/bin/python" ] || python3 -m venv "$folder"
python=$folder/bin/python
if [ "$which" = newest ]; then
    "$python" -m pip install -q --upgrade torch numpy
else
    "$root/build/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        > "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
fi
git clone -q "$root" "$folder/source"
cd "$folder/source"
"$python" -m pip install -q --force-reinstall --no-deps ./client/python
unset PYTHONPATH DTORCH_ADDRESS DTORCH_BIN
cd "$folder"
"$python" -c 'import torch; print("torch", torch.__version__, torch.ones(3, device="dtorch"))'
export PYTHONPATH="$folder/source/tests/python" OMP_NUM_THREADS=1
"$python" "$folder/source/tests/python/device_linear.py" 2-d sizes autocast twice
"$python" "$folder/source/tests/python/device_train.py" mlp
