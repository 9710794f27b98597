#!/bin/sh
# usage: check-layers.sh
# One line a folder: "folder: the folders that it may include". A folder without a line is an error, and so is an
# include of our own that does not name its folder.
set -u
rules='
base: base
conf: base conf
wire: base wire tensor
tensor: base tensor
ops: base ops tensor
shm: base shm
shard: base conf wire tensor ops shm shard
core: base conf wire tensor ops shm shard core
loop: base conf wire tensor ops shm loop
device: base conf wire tensor ops shm loop device
rpc: base conf wire tensor ops shm shard core loop device rpc
transport: base conf wire tensor ops shm shard core loop device transport
store: base conf wire tensor ops shm shard core loop device store
sysd: base conf wire tensor ops shm shard core loop device sysd
metrics: base conf wire tensor ops shm shard core loop device metrics
pki: base conf wire tensor ops shm shard core loop device pki
'
bad=0 files=0
for dir in lib/*/; do
    dir=$(basename "$dir")
    allowed=$(echo "$rules" | sed -n "s/^$dir: *//p")
    if [ -z "$allowed" ]; then
        echo "lib/$dir has no line in mk/check-layers.sh"
        bad=1
    fi
    pattern="\"(dtorch/v1|$(echo "$allowed" | tr ' ' '|'))/"
    for file in lib/"$dir"/*.[ch]; do
        [ -e "$file" ] || continue
        files=$((files + 1))
        wrong=$(grep -nE '^ *# *include *"' "$file" | grep -vE "$pattern")
        [ -z "$wrong" ] && continue
        echo "$wrong" | sed "s|^|$file:|"
        echo "layer: lib/$dir may include only: $allowed"
        bad=1
    done
done
[ $bad -eq 0 ] && echo "layers: $files files in order"
exit $bad
