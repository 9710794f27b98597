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
backend: base tensor device backend
rpc: base conf wire tensor ops shm shard core loop device rpc pki
transport: base conf wire tensor ops shm shard core loop device pki transport
store: base conf wire tensor ops shm shard core loop device store
sysd: base conf wire tensor ops shm shard core loop device sysd
metrics: base conf wire tensor ops shm shard core loop device metrics pki
pki: base conf wire tensor ops shm shard core loop device pki
'
# Programs: what each folder may include besides its own files. dtorchctl is a client: it has no state machine, device
# or store. An engine has no gRPC in it, so nothing named engine_* includes rpc.
programs='
daemons/controllerd: base conf wire tensor ops shm shard core loop rpc store sysd metrics pki
daemons/workerd: base conf wire tensor ops shm shard core loop device transport rpc sysd metrics pki
client/src: base conf wire tensor ops shm shard loop rpc pki
client/ctl: base conf wire tensor ops shm shard loop rpc pki
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
    for file in lib/"$dir"/*.[ch] lib/"$dir"/*/*.[ch] lib/"$dir"/*/*.cpp; do
        [ -e "$file" ] || continue
        files=$((files + 1))
        wrong=$(grep -nE '^ *# *include *"' "$file" | grep -vE "$pattern")
        [ -z "$wrong" ] && continue
        echo "$wrong" | sed "s|^|$file:|"
        echo "layer: lib/$dir may include only: $allowed"
        bad=1
    done
done
for dir in daemons/*/ client/ctl/ client/src/; do
    [ -d "$dir" ] || continue
    dir=${dir%/}
    allowed=$(echo "$programs" | sed -n "s|^$dir: *||p")
    if [ -z "$allowed" ]; then
        echo "$dir has no line in mk/check-layers.sh"
        bad=1
    fi
    for file in "$dir"/*.[ch]; do
        [ -e "$file" ] || continue
        files=$((files + 1))
        may=$allowed
        case $file in */engine_*) may=$(echo " $allowed " | sed 's/ rpc / /; s/ pki / /; s/ metrics / /') ;; esac
        pattern="\"((dtorch/v1|grpc/health/v1|$(echo $may | tr ' ' '|'))/[^/]*|[^/]*)\""
        wrong=$(grep -nE '^ *# *include *"' "$file" | grep -vE "$pattern")
        [ -z "$wrong" ] && continue
        echo "$wrong" | sed "s|^|$file:|"
        echo "layer: $file may include its own folder and: $may"
        bad=1
    done
done
if grep -nE '^ *# *include *[<"](tests|lib/test)' lib/*/*.[ch] daemons/*/*.[ch] client/*/*.[ch] 2>/dev/null; then
    echo "layer: the product includes nothing of the tests"
    bad=1
fi
# Only one folder each speaks to a foreign library.
for pair in 'uv\.h:lib/loop' 'grpc/:lib/rpc' 'openssl/:lib/pki' 'microhttpd\.h:lib/metrics'; do
    header=${pair%%:*} owner=${pair#*:}
    if grep -nE "^ *# *include *<$header" lib/*/*.[ch] daemons/*/*.[ch] client/*/*.[ch] 2>/dev/null | grep -v "^$owner/"; then
        echo "layer: only $owner includes <$(echo "$header" | tr -d '\\')>"
        bad=1
    fi
done
[ $bad -eq 0 ] && echo "layers: $files files in order"
exit $bad
