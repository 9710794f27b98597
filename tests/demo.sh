#!/usr/bin/env bash
# usage: demo.sh BIN
# A cluster as an operator meets it: a controller and three workers as real daemons in a folder of their own, seen with
# dtorchctl. One worker is killed with kill -9, and the demonstration shows when the controller knew, then that the
# worker is back after a restart. Fails when anything that it says is not so.
set -u
bin=$1
dir=$(mktemp -d "${TMPDIR:-/tmp}/dtorch-demo.XXXXXX")
declare -A pid
export DTORCH_ADMIN_SOCKET=$dir/admin.sock NO_COLOR=1
begin=$(date +%s%N)

say() { printf '\n[%5d ms] %s\n' $((($(date +%s%N) - begin) / 1000000)) "$*"; }
show() { printf '$ dtorchctl %s\n' "$*"; "$bin/dtorchctl" "$@"; }

finish() {
    for name in "${!pid[@]}"; do kill -CONT "${pid[$name]}" 2>/dev/null; kill -TERM "${pid[$name]}" 2>/dev/null; done
    for name in "${!pid[@]}"; do wait "${pid[$name]}" 2>/dev/null; done
    rm -rf "$dir"
}
fail() {
    echo "demo: FAILED: $*"
    for log in "$dir"/*.log; do echo "---- $(basename "$log")"; tail -n 20 "$log"; done
    exit 1
}
trap finish EXIT
trap 'exit 130' INT TERM

field() { # JSON PATH...: what dtorchctl -o json says, by python's own parser
    python3 -c 'import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1:]:
    value = value[int(key) if isinstance(value, list) else key]
print(value)' "$@"
}
health() { "$bin/dtorchctl" node show "$1" -o json 2>/dev/null | field items 0 health 2>/dev/null; }
until_health() { # NODE HEALTH...: looks until it holds, 60 s at most
    local node=$1 end=$((SECONDS + 60)) now wanted
    shift
    while [ $SECONDS -lt $end ]; do
        now=$(health "$node")
        for wanted in "$@"; do [ "$now" = "$wanted" ] && return 0; done
        sleep 0.02
    done
    return 1
}

start_worker() {
    "$bin/dtorch-workerd" --config "$dir/$1.conf" >>"$dir/$1.log" 2>&1 </dev/null &
    pid[$1]=$!
}

say "a controller and three workers with two simulated devices each, in $dir"
cat >"$dir/controllerd.conf" <<CONF
[Controller]
ClusterName=demo
Listen=$dir/controller.sock
AdminSocket=$dir/admin.sock
StateDirectory=$dir/controller
MetricsListen=127.0.0.1:0
CONF
mkdir "$dir/controller"
"$bin/dtorch-controllerd" --config "$dir/controllerd.conf" >"$dir/controller.log" 2>&1 </dev/null &
pid[controller]=$!
for name in gpu001 gpu002 gpu003; do
    mkdir "$dir/$name"
    cat >"$dir/$name.conf" <<CONF
[Worker]
Controller=$dir/controller.sock
NodeName=$name
StateDirectory=$dir/$name
Devices=sim:2
MetricsListen=127.0.0.1:0
CONF
    start_worker $name
done
for name in gpu001 gpu002 gpu003; do until_health $name ok || fail "$name did not come up"; done
say "all three are there"
show cluster status || fail "cluster status"
show node list || fail "node list"

say "kill -9 of gpu002 (process ${pid[gpu002]})"
killed=$(date +%s%3N)
kill -KILL "${pid[gpu002]}" || fail "there was nothing to kill"
wait "${pid[gpu002]}" 2>/dev/null
until_health gpu002 dead || fail "the controller did not notice"
show node list || fail "node list"
noticed=$("$bin/dtorchctl" events list -o json | python3 -c 'import json, sys
for event in json.load(sys.stdin)["items"]:
    if event["name"] == "node-dead" and event.get("node") == "gpu002":
        print(event["wall_ms"], event["text"])' | tail -n 1)
[ -n "$noticed" ] || fail "there is no event node-dead for gpu002"
case $noticed in *"no beat for"*) fail "noticed by silence, not by its connection: $noticed" ;; esac
ms=$((${noticed%% *} - killed))
say "the controller knew $ms ms after the kill (its event's time minus the clock before kill)"

say "gpu002 starts again, nobody has to help"
start_worker gpu002
until_health gpu002 ok || fail "gpu002 did not come back"
show events list || fail "events list"

say "stopping everything"
for name in gpu001 gpu002 gpu003 controller; do
    kill -TERM "${pid[$name]}"
    wait "${pid[$name]}" || fail "$name ended with $?"
    unset "pid[$name]"
done
left=$(find "$dir" -type s)
[ -z "$left" ] || fail "left behind: $left"
say "demo: done, noticed after $ms ms, nothing left behind"
