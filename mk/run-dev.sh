#!/usr/bin/env bash
# usage: run-dev.sh BUILD N DEVICES
# A controller and N workers in this terminal, each with DEVICES as Devices= in dtorch.conf(5): data in build/run (or in the folder
# that RUN in the environment names), each line with its program's name in front, Ctrl-C ends all. build/run/env is for a second
# terminal: `. build/run/env` makes dtorchctl and Python there see this cluster.
set -u
build=$PWD/$1 count=$2 devices=$3
bin=$build/bin
dir=$(realpath -m "${RUN:-build/run}")
python=$PWD/build/venv/bin
mkdir -p "$dir"
exec 9>"$dir/lock"
flock -n 9 || { echo "run-dev: a cluster runs in $dir already: end that one (Ctrl-C), or name another folder: make run-dev RUN=FOLDER" >&2; exit 1; }
# A socket's path is short by law; a link gives a deep checkout a short one.
short=$(mktemp -d /tmp/dtorch-dev.XXXXXX)
ln -s "$dir" "$short/d"
pids=()

finish() {
    trap '' INT TERM
    [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null
    wait "${pids[@]}" 2>/dev/null
    rm -rf "$short" "$dir/env"
}
trap 'finish; exit 0' INT TERM
trap finish EXIT

run() { # NAME COLOUR PROGRAM ARGUMENTS...
    local name=$1 colour=$2
    shift 2
    local on='' off=''
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then on=$'\e['"${colour}m" off=$'\e[0m'; fi
    "$@" > >(exec sed -u "s/^/$on$(printf '%-10s' "$name")$off | /") 2>&1 </dev/null 9>&- &
    pids+=($!)
}

asked() { DTORCH_ADMIN_SOCKET=$short/d/admin.sock "$bin/dtorchctl" -q "$@" 2>/dev/null 9>&-; }

until_is() { # WANTED COMMAND...: or a program has ended
    local wanted=$1
    shift
    until [ "$("$@")" = "$wanted" ]; do
        for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || return 0; done
        sleep 0.1
    done
}

# A daemon that is silent here has no processor: its end is told by the kernel at once.
cat >"$dir/controllerd.conf" <<CONF
[Controller]
ClusterName=dev
Listen=$short/d/controller.sock
AdminSocket=$short/d/admin.sock
StateDirectory=$dir/controller
MetricsListen=127.0.0.1:0
StatusListen=127.0.0.1:0
SuspectBeats=100
DeadBeats=240
CONF
mkdir -p "$dir/controller"
run controller 36 "$bin/dtorch-controllerd" --config "$dir/controllerd.conf"
until_is 0 eval 'asked node list -o name >&2; echo $?'
cat >"$dir/env" <<ENV
# For a shell: programs and dtorchctl see the cluster of make run-dev.
export DTORCH_ADDRESS=$short/d/controller.sock DTORCH_ADMIN_SOCKET=$short/d/admin.sock
export PATH=$bin:$([ -d "$python" ] && echo "$python:")\$PATH PYTHONPATH=$PWD/build/python
ENV
for ((i = 0; i < count; i++)); do
    mkdir -p "$dir/w$i"
    cat >"$dir/w$i.conf" <<CONF
[Worker]
Controller=$short/d/controller.sock
NodeName=w$i
StateDirectory=$dir/w$i
Devices=$devices
DataListen=127.0.0.1:0
MetricsListen=127.0.0.1:0
CONF
    run "w$i" "3$((i % 5 + 1))" "$bin/dtorch-workerd" --config "$dir/w$i.conf"
done
least=1
[ "$devices" != none ] || least=0
until_is "$count" eval "asked node list -o name --filter='state=ready devices>=$least' | wc -l"
page=$(asked diag dump --filter=name=status_page -p value --no-legend)
echo "its status page: http://${page//[[:space:]]/}/"
echo "ready. In a second terminal:  . ${dir#"$PWD/"}/env && dtorchctl node list     (Ctrl-C here ends all)"
# Workers may be killed to see what happens; without the controller there is nothing left to see.
wait "${pids[0]}"
echo "the controller has ended, so all end"
exit 1
