#!/bin/sh
# usage: machines.sh PACKAGES TORCH
# Three machines on one network, as README's "Real machines" has them: three small Debians, each booted by its own systemd in
# namespaces of its own, with cables to a switch. The packages of the folder PACKAGES are installed by apt; a cluster with TLS is set
# up by dtorchctl; a Llama is trained on both nodes and compared with one device; a cable is pulled and put back; a node is drained; a
# node is upgraded while the other one works. TORCH is the site-packages that hold PyTorch and transformers: the machines have them in
# /opt/torch. Needs root, cgroup2, overlayfs and debootstrap: says so and counts as skipped where they are missing.
# Ends with "machines: N passed, N failed".
set -u
here=$(cd "$(dirname "$0")" && pwd)
packages=$(cd "$1" && pwd)
torch=$2
base=$PWD/build/machines
minor=$(echo "$torch" | sed -n 's|.*/lib/\(python3\.[0-9]*\)/.*|\1|p')
net=dt$$
programs=
passed=0 failed=0
debian=systemd-sysv,dbus,iproute2,python3,python3-venv,libgrpc29,libuv1,libprotobuf-c1,libmicrohttpd12,libssl3

skip() {
    echo "machines: skipped: $1"
    echo 'machines: 0 passed, 0 failed, 1 skipped'
    exit 0
}

give_up() {
    echo "FAILED $1"
    echo 'machines: 0 passed, 1 failed'
    exit 1
}

is() { # WHAT GOT WANTED
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
        echo "  $(date +%H:%M:%S) $1"
    else
        failed=$((failed + 1))
        echo "FAILED $1: got '$2', wanted '$3'"
    fi
}

becomes() { # WHAT WANTED COMMAND...: within two minutes
    what=$1 wanted=$2
    shift 2
    for _ in $(seq 600); do
        got=$("$@" 2>/dev/null)
        [ "$got" = "$wanted" ] && break
        sleep 0.2
    done
    is "$what" "$got" "$wanted"
}

# ---- machines ----

make_debian() { # what all three are made of, once
    [ ! -e "$base/made-with-$debian" ] || return 0
    rm -rf "$base/debian"
    mkdir -p "$base"
    debootstrap --variant=minbase --include="$debian" bookworm "$base/debian" >"$base/debootstrap.log" 2>&1 || return 1
    for unit in serial-getty@ttyS0 console-getty getty@tty1 systemd-timesyncd; do
        ln -sf /dev/null "$base/debian/etc/systemd/system/$unit.service"
    done
    chroot "$base/debian" useradd --create-home ana
    touch "$base/made-with-$debian"
}

boot() { # NAME NUMBER: with a cable to the switch
    name=$1
    layer=$base/$name/layer
    cgroup=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)/$net-$name
    mkdir -p "$base/$name/root" "$base/$name/work" "$layer/etc" "$layer/packages" "$layer/opt/next" "$layer/opt/torch/lib/$minor/site-packages" "$cgroup"
    echo "$name" >"$layer/etc/hostname"
    : >"$layer/etc/machine-id"
    printf '127.0.0.1 localhost\n10.77.0.1 ctl.example\n10.77.0.2 node1\n10.77.0.3 node2\n' >"$layer/etc/hosts"
    ip netns add "$net-$name"
    ip link add "$net$2" type veth peer name eth0 netns "$net-$name"
    ip link set "$net$2" netns "$net-lan"
    ip -n "$net-lan" link set "$net$2" master lan up
    ip -n "$net-$name" address add "10.77.0.$2/24" dev eth0
    ip -n "$net-$name" link set lo up
    ip -n "$net-$name" link set eth0 up
    LAYERS=lowerdir=$base/debian,upperdir=$layer,workdir=$base/$name/work \
        sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$cgroup" ip netns exec "$net-$name" \
        unshare --mount --pid --fork --uts --ipc --cgroup sh "$here/systemd-boot.sh" "$base/$name/root" \
        "$packages" packages "$base/next" opt/next "$torch" "opt/torch/lib/$minor/site-packages" >"$base/$name/console.log" 2>&1 &
    eval "unshare_$name=$!"
}

booted() { # NAME
    for _ in $(seq 600); do
        pid=$(pgrep -P "$(eval "echo \$unshare_$1")")
        eval "pid_$1=\$pid"
        [ -n "$pid" ] && case $(on "$1" systemctl is-system-running 2>/dev/null) in running | degraded) return 0 ;; esac
        sleep 0.2
    done
    give_up "$1 did not boot, see $base/$1/console.log"
}

on() { # NAME COMMAND...
    pid=$(eval "echo \$pid_$1")
    shift
    nsenter -t "$pid" -m -p -u -i -C -n "$@"
}

shut_down() {
    for name in node2 node1 ctl; do
        pid=$(eval "echo \${pid_$name:-}")
        [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null
        ip netns delete "$net-$name" 2>/dev/null
        for _ in $(seq 20); do
            find "$(findmnt -n -t cgroup2 -o TARGET | head -n 1)/$net-$name" -depth -type d -exec rmdir {} + 2>/dev/null && break
            sleep 0.1
        done
    done
    ip netns delete "$net-lan" 2>/dev/null
}

cable() { # NUMBER up|down: at the switch
    ip -n "$net-lan" link set "$net$1" "$2"
}

# ---- what a person types ----

ctl() { on ctl dtorchctl "$@"; }
value() { # OF FIELD...: as dtorchctl prints it
    of=$1
    shift
    # shellcheck disable=SC2086  # words
    ctl $of -o json 2>/dev/null | python3 -c 'import json, sys
value = json.load(sys.stdin)["items"][0]
for key in sys.argv[1:]:
    value = value[int(key) if isinstance(value, list) else key]
print(value)' "$@" 2>/dev/null
}
node() { name=$1; shift; value "node show $name" "$@"; }
state_of() { on "$1" systemctl show -p "$3" --value "dtorch-$2.service"; }

install_packages() { # NAME FOLDER PACKAGE...: all of one apt-get
    name=$1 folder=$2
    shift 2
    # shellcheck disable=SC2016  # expanded there
    on "$name" sh -c 'folder=$1; shift; for package; do set -- "$@" "$folder/$package"_*.deb; shift; done
        DEBIAN_FRONTEND=noninteractive apt-get install -y "$@"' sh "$folder" "$@" >"$base/$name/install.log" 2>&1
}

python() { # what ana runs on the controller's machine
    on ctl runuser -u ana -- env HOME=/home/ana DTORCH_ADDRESS=ctl.example:7700 DTORCH_API_KEY_FILE=/home/ana/ana.key \
        DTORCH_CERTIFICATE_AUTHORITY=/etc/dtorch/pki/ca.pem OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 \
        TORCHINDUCTOR_CACHE_DIR=/home/ana/cache /opt/torch/bin/python "$@"
}

try_setup() {
    for name in ctl node1 node2; do
        on "$name" python3 -m venv --without-pip --system-site-packages /opt/torch.made >/dev/null # over what is mounted there
        on "$name" sh -c 'cp -a /opt/torch.made/bin /opt/torch.made/pyvenv.cfg /opt/torch/'
    done
    install_packages ctl /packages dtorch-common dtorch-ctl dtorch-controllerd libdtorch0 python3-dtorch
    is 'ctl: packages are installed' $? 0
    for name in node1 node2; do
        install_packages "$name" /packages dtorch-common dtorch-ctl dtorch-workerd
        is "$name: packages are installed" $? 0
    done
    ctl setup controller --address=ctl.example -q
    is 'the controller is set up' $? 0
    on ctl systemctl enable --now dtorch-controllerd 2>/dev/null
    is 'and runs' "$(state_of ctl controllerd ActiveState)" active
    token=$(ctl token create --uses=2 -q)
    for name in node1 node2; do
        echo "$token" | on "$name" dtorchctl setup worker --controller=ctl.example --token-file=- --torch=/opt/torch -q
        is "$name is set up" $? 0
        on "$name" systemctl enable --now dtorch-workerd 2>/dev/null
        is "$name: its worker runs" "$(state_of "$name" workerd ActiveState)" active
        becomes "$name is ok" ok node "$name" health
        becomes "$name computes with LibTorch" torch node "$name" devices 0 device backend
    done
    ctl key create ana -q >"$base/ctl/layer/ana.key"
    on ctl install -o ana -m 0600 /ana.key /home/ana/ana.key
}

# A program that goes on until it is told to stop: says where it computes, a line each step, and what went wrong.
STEPS='
import os, sys, time
import torch, dtorch
x = torch.eye(32, device="dtorch")
print("on", torch.dtorch.get_device_name(0), flush=True)
step = 0
try:
    while not os.path.exists("/home/ana/stop"):
        x = x @ x
        step += 1
        print("step", step, int(x.sum().item()), flush=True)
        time.sleep(0.2)
except dtorch.Error as error:
    print("told", type(error).__name__, " ".join(str(error).split()), flush=True)
'
WHERE='import torch; x = torch.ones(3, device="dtorch"); x.sum().item(); print(torch.dtorch.get_device_name(0))'

run_steps() { # NAME: in the background, its lines in a file of that name
    python -u -c "$STEPS" >"$base/$1.out" 2>&1 &
    programs="$programs $!"
}

place_of() { sed -n 's/^on \([^ ]*\).*/\1/p' "$base/$1.out"; } # NAME
steps_of() { grep -c '^step' "$base/$1.out"; }
told() { grep -q '^told' "$base/$1.out" && echo yes; }
goes_on() { # NAME SINCE: it has done more steps
    [ "$(steps_of "$1")" -gt "$2" ] && echo yes
}

metric() { # MACHINE PORT NAME: the sum of its samples
    on "$1" python3 -c 'import sys, urllib.request
page = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read().decode()
print(int(sum(float(line.split()[-1]) for line in page.splitlines() if line.split("{")[0].split()[0] == sys.argv[2])))' "$2" "$3"
}

tls_of() { # ADDRESS PORT: what is spoken there
    on ctl python3 -c 'import socket, ssl, sys
context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE  # a certificate of a node is for nodes and programs
context.set_alpn_protocols(["h2"])
print(context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)).version())' "$1" "$2"
}

llama() { # WHAT: trained and asked on both nodes, and beside that on the CPU
    python /usr/share/dtorch/examples/python/llama_mesh.py --mesh=tp2 --steps=3 --tokens=8 --check >"$base/llama.out" 2>&1
    is "$1" "$?" 0
    tail -n 1 "$base/llama.out"
    is 'and is what one device computes' "$(grep -c 'beside one device.*tokens equal' "$base/llama.out")" 1
}

try_llama() {
    llama 'the Llama is trained on two nodes'
    is 'tensors went from node to node' "$([ "$(metric node1 7704 dtorch_worker_move_bytes_total)" -gt 10000 ] && echo yes)" yes
    for address in 10.77.0.1:7700 10.77.0.2:7703 10.77.0.3:7703; do
        is "$address speaks TLS" "$(tls_of "${address%:*}" "${address#*:}")" TLSv1.3
    done
}

number_of() { case $1 in node1) echo 2 ;; node2) echo 3 ;; esac; }
alarmed() { ctl cluster status -o json | grep -o '"node-dead"' | wc -l; }

try_cable() {
    run_steps one
    becomes 'a program computes' yes goes_on one 3
    run_steps two
    becomes 'a second one too' yes goes_on two 3
    lost=$(place_of two)
    is 'each on a node of its own' "$([ -n "$lost" ] && [ "$lost" != "$(place_of one)" ] && echo yes)" yes
    cable "$(number_of "$lost")" down
    becomes 'a node without its cable is dead' dead node "$lost" health
    becomes 'and an alarm' 1 alarmed
    becomes 'its program is told' yes told two
    is 'by an error of a type of its own that names the node' "$(grep -c "^told LostError.*$lost" "$base/two.out")" 1
    grep '^told' "$base/two.out"
    before=$(steps_of one)
    becomes 'the other program goes on' yes goes_on one $((before + 5))
    cable "$(number_of "$lost")" up
    becomes 'with its cable the node is back by itself' ok node "$lost" health
    becomes 'and the alarm is over' 0 alarmed
    llama 'and computes again'
    is 'the other program never noticed' "$(told one)" ''
    on ctl runuser -u ana -- touch /home/ana/stop
    wait_for_programs
}

wait_for_programs() {
    for program in $programs; do
        wait "$program"
    done
    programs=
    on ctl rm /home/ana/stop
}

try_drain() {
    ctl node drain node1 -m 'new fan' --wait -q >/dev/null
    is 'a drain is done when nothing runs there any more' "$? $(node node1 admin)" '0 drained'
    is 'what comes then goes elsewhere' "$(python -c "$WHERE" | cut -d' ' -f1)" node2
    is 'and the reason is shown' "$(ctl node list | grep -c 'new fan')" 1
}

try_upgrade() { # of node1, which is drained
    run_steps three
    becomes 'a program computes on the other node' yes goes_on three 3
    is 'on node2' "$(place_of three)" node2
    worker=$(state_of node1 workerd MainPID)
    install_packages node1 /opt/next dtorch-common dtorch-ctl dtorch-workerd
    is 'an upgrade leaves the running daemon alone' "$? $(state_of node1 workerd MainPID)" "0 $worker"
    on node1 systemctl restart dtorch-workerd
    is 'it starts again' "$(state_of node1 workerd ActiveState)" active
    becomes 'and is back, still drained' 'ok drained' health_and_admin node1
    is 'of the new version' "$(node node1 build | grep -c 'next$')" 1
    ctl node undrain node1 -q >/dev/null
    is 'node2 is of the old one' "$(node node2 build | grep -c 'next$')" 0
    before=$(steps_of three)
    becomes 'the program on the other node goes on' yes goes_on three $((before + 5))
    is 'and never noticed' "$(told three)" ''
    on ctl runuser -u ana -- touch /home/ana/stop
    wait_for_programs
    llama 'both versions compute together'
}

health_and_admin() { echo "$(node "$1" health) $(node "$1" admin)"; }

try_end() {
    ctl node list
    for name in node1 node2; do
        on "$name" systemctl stop dtorch-workerd
        is "$name stops well" "$(state_of "$name" workerd Result)" success
    done
    on ctl systemctl stop dtorch-controllerd
    is 'the controller stops well' "$(state_of ctl controllerd Result)" success
}

next_version() { # of what a node has: the same programs, which say and are a later version
    rm -rf "$base/next"
    for package in dtorch-common dtorch-ctl dtorch-workerd; do
        work=$base/next/work
        mkdir -p "$base/next"
        dpkg-deb -R "$packages/$package"_*.deb "$work"
        version=$(sed -n 's/^Version: //p' "$work/DEBIAN/control")
        stem=${version%????}
        sed -i "s/$version/${version}.1/g" "$work/DEBIAN/control"
        find "$work/usr" -path '*bin/*' -type f \
            -exec env LC_ALL=C sed -i "s/\\($(echo "$stem" | sed 's/[.-]/[.-]/g')\\)${version#"$stem"}/\\1next/g" {} +
        dpkg-deb --root-owner-group --build "$work" "$base/next/" >/dev/null
        rm -rf "$work"
    done
}

[ "$(id -u)" -eq 0 ] || skip 'needs root'
findmnt -n -t cgroup2 >/dev/null || skip 'needs cgroup2, which is mounted nowhere'
grep -q overlay /proc/filesystems || skip 'needs overlayfs'
command -v debootstrap >/dev/null || skip 'needs debootstrap'
[ -d "$torch/torch" ] || skip "$torch holds no PyTorch"
[ -d "$torch/transformers" ] || skip "$torch holds no transformers"
make_debian || give_up "making the Debian: $(tail -n 1 "$base/debootstrap.log")"
[ -e "$base/debian/usr/lib/$minor" ] || skip "PyTorch is for $minor, and Debian 12 has another"
for name in ctl node1 node2; do
    rm -rf "${base:?}/$name"
done
trap shut_down EXIT
trap 'exit 130' INT TERM
next_version
ip netns add "$net-lan"
ip -n "$net-lan" link add lan type bridge
ip -n "$net-lan" link set lan up
boot ctl 1
boot node1 2
boot node2 3
for name in ctl node1 node2; do
    booted "$name"
done
try_setup
try_llama
try_cable
try_drain
try_upgrade
try_end
if [ $failed -ne 0 ]; then
    for name in ctl node1 node2; do
        echo "---- the journal of $name"
        on "$name" journalctl -q -b -u 'dtorch-*' -o short-precise | tail -n 60
    done
fi
echo "machines: $passed passed, $failed failed"
[ $failed -eq 0 ]
