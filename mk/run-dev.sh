#!/usr/bin/env bash
# usage: run-dev.sh BIN N
# A controller and N workers with simulated devices in this terminal: data in build/run, each line with its program's
# name in front, Ctrl-C ends all. In a second terminal: dtorchctl with the address that is printed.
set -u
bin=$1 count=$2
dir=$PWD/build/run
mkdir -p "$dir"
# A socket's path is short by law; a link gives a deep checkout a short one.
short=$(mktemp -d /tmp/dtorch-dev.XXXXXX)
ln -s "$dir" "$short/d"
pids=()

finish() {
    trap '' INT TERM
    kill -TERM "${pids[@]}" 2>/dev/null
    wait "${pids[@]}" 2>/dev/null
    rm -rf "$short"
}
trap 'finish; exit 0' INT TERM
trap finish EXIT

run() { # NAME COLOUR PROGRAM ARGUMENTS...
    local name=$1 colour=$2
    shift 2
    local on='' off=''
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then on=$'\e['"${colour}m" off=$'\e[0m'; fi
    "$@" > >(exec sed -u "s/^/$on$(printf '%-10s' "$name")$off | /") 2>&1 </dev/null &
    pids+=($!)
}

cat >"$dir/controllerd.conf" <<CONF
[Controller]
ClusterName=dev
Listen=$short/d/controller.sock
AdminSocket=$short/d/admin.sock
StateDirectory=$dir/controller
MetricsListen=127.0.0.1:0
CONF
mkdir -p "$dir/controller"
run controller 36 "$bin/dtorch-controllerd" --config "$dir/controllerd.conf"
for ((i = 0; i < count; i++)); do
    mkdir -p "$dir/w$i"
    cat >"$dir/w$i.conf" <<CONF
[Worker]
Controller=$short/d/controller.sock
NodeName=w$i
StateDirectory=$dir/w$i
Devices=sim:2
MetricsListen=127.0.0.1:0
CONF
    run "w$i" "3$((i % 5 + 1))" "$bin/dtorch-workerd" --config "$dir/w$i.conf"
done
echo "look at it:  DTORCH_ADMIN_SOCKET=$short/d/admin.sock $bin/dtorchctl node list     (Ctrl-C here ends all)"
# Workers may be killed to see what happens; without the controller there is nothing left to see.
wait "${pids[0]}"
echo "the controller has ended, so all end"
exit 1
