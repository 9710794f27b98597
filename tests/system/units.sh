#!/bin/sh
# usage: units.sh BUILD|root-only
# The units with the real daemons under a real systemd as PID 1, in namespaces of its own: installs BUILD by
# `make install` into a small Debian, boots it, and tries what the unit files promise. The Debian is made once by
# debootstrap and kept in build/systemd (root-only does no more than that). With PACKAGES in the environment, a folder
# of what `make deb` makes, these are installed by dpkg in place of `make install`, into a copy of that Debian, and removed at the end. Needs root and cgroup2: says so and counts as skipped where they are missing.
# Ends with "units: N passed, N failed".
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$1
base=$PWD/build/systemd
root=$base/root
packages_dir=${PACKAGES:-}
passed=0 failed=0
packages=systemd-sysv,dbus,man-db,libgrpc29,libuv1,libprotobuf-c1,libmicrohttpd12,libssl3

skip() {
    [ "$build" != root-only ] || exit 0
    echo "units: skipped: $1"
    echo 'units: 0 passed, 0 failed, 1 skipped'
    exit 0
}

make_root() {
    [ -e "$base/made-with-$packages" ] && return 0
    rm -rf "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase --include="$packages" bookworm "$root" >"$base/debootstrap.log" 2>&1 || return 1
    # Nothing will answer for a serial console, and waiting for one takes 90 s.
    for unit in serial-getty@ttyS0 console-getty getty@tty1 systemd-timesyncd; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
    done
    touch "$base/made-with-$packages"
}

copy_root() { # for packages: dpkg writes down what it has installed
    rm -rf "$PWD/build/systemd-deb"
    mkdir -p "$PWD/build/systemd-deb"
    cp -a "$root" "$PWD/build/systemd-deb/"
    base=$PWD/build/systemd-deb
    root=$base/root
    # An earlier `make install` into it would hide what a package lacks.
    rm -rf "$root"/usr/sbin/dtorch-* "$root"/usr/bin/dtorchctl "$root"/usr/lib/libdtorch* "$root"/usr/lib/dtorch "$root"/usr/share/dtorch \
        "$root"/usr/lib/systemd/system/dtorch-* "$root"/usr/lib/sysusers.d/dtorch.conf "$root"/usr/lib/tmpfiles.d/dtorch.conf
    rm -rf "$root/packages"
    mkdir "$root/packages"
    cp "$packages_dir"/dtorch-*.deb "$packages_dir"/libdtorch*.deb "$root/packages/"
}

put_files() {
    if [ -n "$packages_dir" ]; then
        chroot "$root" sh -c 'dpkg -i /packages/*.deb' >"$base/install.log" 2>&1
    else
        make --no-print-directory install PRESET="$(basename "$build")" DESTDIR="$root" PREFIX=/usr >"$base/install.log" 2>&1
    fi
}

install_all() { # what an earlier run left is taken away first
    rm -rf "$root/etc/dtorch" "$root/var/lib/dtorch" "$root/var/lib/private" "$root/var/log/journal" \
        "$root"/etc/systemd/system/dtorch-* "$root/etc/systemd/system/multi-user.target.wants"/dtorch-* \
        "$root/etc/systemd/system/sockets.target.wants"/dtorch-*
    put_files || return 1
    make --no-print-directory PRESET="$(basename "$build")" "$build/examples/matmul" >>"$base/install.log" 2>&1 || return 1
    mkdir -p "$root/etc/dtorch"
    printf '[Controller]\nClusterName=units\nListen=/run/dtorch/controller.sock\nMetricsListen=127.0.0.1:0\nStatusListen=127.0.0.1:0\n' \
        >"$root/etc/dtorch/controllerd.conf"
    printf '[Worker]\nController=/run/dtorch/controller.sock\nNodeName=unit0\nDevices=sim:2\nMetricsListen=127.0.0.1:0\n' \
        >"$root/etc/dtorch/workerd.conf"
}

boot() {
    # Its own cgroup keeps what it makes apart and easy to remove. cgroup2 may stand at either usual place.
    cgroup=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)/dtorch-units-$$
    mkdir -p "$cgroup"
    sh -c 'echo $$ >"$1/cgroup.procs"; exec unshare --mount --pid --fork --uts --ipc --cgroup sh "$2" "$3"' \
        sh "$cgroup" "$here/systemd-boot.sh" "$root" >"$base/console.log" 2>&1 &
    unshare_pid=$!
    for _ in $(seq 600); do
        pid=$(pgrep -P "$unshare_pid" || true)
        [ -n "$pid" ] && case $(inside systemctl is-system-running 2>/dev/null) in running | degraded) return 0 ;; esac
        sleep 0.1
    done
    return 1
}

shut_down() {
    [ -z "${pid:-}" ] || kill -KILL "$pid" 2>/dev/null
    [ -z "${unshare_pid:-}" ] || wait "$unshare_pid" 2>/dev/null
    for _ in $(seq 20); do
        find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.1
    done
}

inside() { nsenter -t "$pid" -m -p -u -i -C "$@"; }
property() { inside systemctl show -p "$2" --value "dtorch-$1"; }
node() { # FIELD...: of unit0, as dtorchctl prints it
    inside dtorchctl node show unit0 -o json 2>/dev/null | python3 -c 'import json, sys
value = json.load(sys.stdin)["items"][0]
for key in sys.argv[1:]:
    value = value[int(key) if isinstance(value, list) else key]
print(value)' "$@" 2>/dev/null
}
events() { inside dtorchctl events list -o json | grep -c "\"$1\""; }

is() { # WHAT GOT WANTED
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $1: got '$2', wanted '$3'"
    fi
}

becomes() { # WHAT WANTED COMMAND...: within a minute
    what=$1 wanted=$2
    shift 2
    for _ in $(seq 600); do
        got=$("$@")
        [ "$got" = "$wanted" ] && break
        sleep 0.1
    done
    is "$what" "$got" "$wanted"
}

try_controllerd() {
    inside systemctl start dtorch-controllerd
    is 'controllerd starts' "$(property controllerd.service ActiveState)" active
    is 'it says what it is in its status' "$([ -n "$(property controllerd.service StatusText)" ] && echo yes)" yes
    is 'it runs as dtorch' "$(inside stat -c %U "/proc/$(property controllerd.service MainPID)")" dtorch
    is 'its state directory' "$(inside stat -c '%U %a' /var/lib/dtorch/controllerd)" 'dtorch 700'
    is 'the admin socket' "$(inside stat -c '%F %G %a' /run/dtorch/admin.sock)" 'socket dtorch-admin 660'
    is 'and is answered' "$(inside dtorchctl cluster status >/dev/null 2>&1; echo $?)" 0
    before=$(property controllerd.service MainPID)
    inside systemctl reload dtorch-controllerd
    is 'it reloads' "$?" 0
    is 'and is the same process' "$(property controllerd.service MainPID)" "$before"
    echo 'Bad=1' >>"$root/etc/dtorch/controllerd.conf"
    inside systemctl reload dtorch-controllerd 2>/dev/null
    is 'a bad configuration stops the reload' "$?" 1
    is 'and the daemon goes on' "$(property controllerd.service ActiveState)" active
    inside systemctl restart dtorch-controllerd 2>/dev/null
    becomes 'exit 78 is not restarted' failed property controllerd.service ActiveState
    is 'exit 78 is the cause' "$(property controllerd.service ExecMainStatus)" 78
    sed -i /Bad=/d "$root/etc/dtorch/controllerd.conf"
    inside systemctl reset-failed dtorch-controllerd
    inside systemctl start dtorch-controllerd
}

try_workerd() {
    inside systemctl start dtorch-workerd
    is 'workerd starts' "$(property workerd.service ActiveState)" active
    is 'its state directory' "$(inside stat -c '%U %a' /var/lib/dtorch/workerd)" 'dtorch 700'
    becomes 'it registers' ok node health
    becomes 'its devices are seen' sim node devices 1 device backend
    becomes 'an engine comes up inside the sandbox' warm node engines 0 state
    worker=$(property workerd.service MainPID)
    inside systemctl reload dtorch-workerd
    is 'it reloads and is the same process' "$? $(property workerd.service MainPID)" "0 $worker"
    engine=$(node engines 0 pid)
    inside sh -c "kill -KILL ${engine:-0}"
    becomes 'a killed engine is replaced' yes engine_is_new "$engine"
    is 'and the worker did not notice more than that' "$(property workerd.service MainPID)" "$worker"
    is 'users and groups' "$(inside id -nG dtorch)" 'dtorch video render'
}

engine_is_new() {
    now=$(node engines 0 pid)
    [ "$(node engines 0 state)" = warm ] && [ "$now" != "$1" ] && echo yes
}

killed_twice() { # the count of kills that the manager mended
    property "$1.service" NRestarts
}

try_journal() {
    is 'events have fields in the journal' "$(inside journalctl -q -b DTORCH_EVENT=ready -o cat | wc -l | awk '{ print ($1 > 0) }')" 1
    is 'and name their node' "$(inside journalctl -q -b DTORCH_NODE=unit0 -o cat | wc -l | awk '{ print ($1 > 0) }')" 1
}

try_restarts() {
    inside dtorchctl node drain unit0 -m 'units test' >/dev/null
    is 'a drain is accepted' "$?" 0
    becomes 'and shown' drained node admin
    before=$(property controllerd.service NRestarts)
    inside systemctl kill -s KILL dtorch-controllerd
    becomes 'a killed controllerd is restarted' $((before + 1)) killed_twice controllerd
    becomes 'and serves' active property controllerd.service ActiveState
    becomes 'the worker is back without help' ok node health
    becomes 'the drain survived' drained node admin
    inside dtorchctl node undrain unit0 >/dev/null
    is 'an undrain is accepted' "$? $(node admin)" '0 enabled'
    before=$(property workerd.service NRestarts)
    inside systemctl kill -s KILL --kill-who=main dtorch-workerd
    becomes 'a killed workerd is restarted' $((before + 1)) killed_twice workerd
    becomes 'and registers again' ok node health
    is 'its death was an event' "$([ "$(events node-dead)" -ge 1 ] && echo yes)" yes
}

was_restarted() { [ "$(property "$1.service" NRestarts)" -ge 1 ] && echo yes; }

try_watchdog() { # UNIT
    mkdir -p "$root/etc/systemd/system/dtorch-$1.service.d"
    printf '[Service]\nWatchdogSec=2s\n' >"$root/etc/systemd/system/dtorch-$1.service.d/short.conf"
    inside systemctl daemon-reload
    inside systemctl restart "dtorch-$1"
    inside systemctl kill -s STOP --kill-who=main "dtorch-$1"
    becomes "$1: a hang is ended by the watchdog" yes was_restarted "$1" # more than once, if the machine hung too
    becomes "$1: and it serves again" active property "$1.service" ActiveState
    is "$1: the journal says why" "$(inside journalctl -q -b -u "dtorch-$1" | grep -q 'Watchdog timeout' && echo yes)" yes
    rm -r "$root/etc/systemd/system/dtorch-$1.service.d"
    inside systemctl daemon-reload
}

try_stop() {
    becomes 'the worker is there before the end' ok node health
    inside systemctl stop dtorch-workerd
    is 'a clean stop of workerd' "$(property workerd.service Result)" success
    becomes 'a planned end is told from a death' stopped node health
    inside systemctl stop dtorch-controllerd
    is 'a clean stop of controllerd' "$(property controllerd.service Result)" success
    is 'stopped is stopped: no socket is left that would start it again' \
        "$(inside systemctl is-active dtorch-controllerd-admin.socket)" inactive
    is 'no socket is left' "$(inside find /run/dtorch -type s | wc -l)" 0
    inside systemctl start dtorch-controllerd-admin.socket
    is 'a socket alone starts no daemon' "$(property controllerd.service ActiveState)" inactive
    is 'the first request does' "$(inside dtorchctl cluster status >/dev/null 2>&1; echo $?)" 0
    becomes 'and it was started by its socket' active property controllerd.service ActiveState
    inside systemctl stop dtorch-controllerd
    mv "$root/etc/dtorch/workerd.conf" "$root/etc/dtorch/workerd.conf.away"
    inside systemctl start dtorch-workerd
    is 'without configuration it is skipped, not failed' "$(property workerd.service ActiveState)" inactive
    mv "$root/etc/dtorch/workerd.conf.away" "$root/etc/dtorch/workerd.conf"
}

try_files() { # what can be judged without running; the limit of a score is the score times ten
    is 'verify has nothing to say' "$(inside systemd-analyze verify dtorch-controllerd.service \
        dtorch-controllerd-admin.socket dtorch-workerd.service 2>&1 | grep dtorch)" ''
    is 'nothing is enabled before somebody configured it' "$(inside systemctl preset-all --preset-mode=enable-only 2>/dev/null
        inside systemctl is-enabled dtorch-controllerd.service dtorch-workerd.service dtorch-controllerd-admin.socket | sort -u)" disabled
    for pair in controllerd:15 workerd:20; do
        unit=dtorch-${pair%:*}.service
        systemd-analyze security --offline=yes --threshold="${pair#*:}" "$root/usr/lib/systemd/system/$unit" >"$base/score" 2>&1
        is "$unit scores within ${pair#*:}" "$?" 0
        tail -n 1 "$base/score" | sed 's/^[^O]*//'
    done
}

program() { # CREDENTIALS...: what a program says that connects by TCP
    inside env DTORCH_ADDRESS=127.0.0.1:7700 DTORCH_CERTIFICATE_AUTHORITY=/etc/dtorch/pki/ca.pem "$@" \
        /usr/bin/matmul 2>&1
}

try_tls() { # as README's "Three machines" says, on one: authority, token, certificate, and a program's key
    inside systemctl stop dtorch-workerd dtorch-controllerd dtorch-controllerd-admin.socket
    rm -rf "$root/etc/dtorch" "$root/var/lib/dtorch/controllerd" "$root/var/lib/dtorch/workerd"
    install -m 0755 "$build/examples/matmul" "$root/usr/bin/"
    inside dtorchctl setup controller --address=127.0.0.1,localhost --listen=127.0.0.1:7700 -q
    is 'a controller with TLS is set up' "$?" 0
    inside systemctl start dtorch-controllerd
    is 'it starts' "$(property controllerd.service ActiveState)" active
    inside sh -c 'umask 077; dtorchctl token create -q >/root/token'
    is 'a token is made' "$?" 0
    inside dtorchctl setup worker --controller=127.0.0.1:7700 --name=unit0 --devices=ref --token-file=/root/token -q
    is 'a worker is set up' "$?" 0
    inside systemctl start dtorch-workerd
    is 'it starts, and has joined' "$(property workerd.service ActiveState)" active
    becomes 'it is ok' ok node health
    is 'with a certificate' "$([ "$(node certificate_not_after_wall_ms)" -gt 0 ] && echo yes)" yes
    is 'its key is its own' "$(inside stat -c '%U %a' /var/lib/dtorch/workerd/node.key)" 'dtorch 600'
    rm "$root/root/token" "$root/etc/dtorch/pki/join.token"
    inside systemctl restart dtorch-workerd
    is 'without the token it starts again' "$(property workerd.service ActiveState)" active
    becomes 'and is ok' ok node health
    inside sh -c 'umask 077; dtorchctl key create units -q >/root/key'
    is 'an API key is made' "$?" 0
    is 'a program with it computes' "$(program DTORCH_API_KEY_FILE=/root/key >/dev/null; echo $?)" 0
    rm "$root/etc/dtorch/client.conf" # with the administrator's certificate
    is 'one without is told what to do' "$(program HOME=/ | grep -c ApiKeyFile=)" 1
    inside dtorchctl key revoke units -y -q >/dev/null
    is 'a revoked key is refused' "$(program DTORCH_API_KEY_FILE=/root/key | grep -c revoked)" 1
    inside systemctl stop dtorch-workerd dtorch-controllerd
    is 'both stop well' "$(property workerd.service Result) $(property controllerd.service Result)" 'success success'
}

try_removal() { # of packages while their daemons run: they are stopped, and what the site has made stays
    inside systemctl start dtorch-controllerd dtorch-workerd
    is 'both run before the packages go' "$(property controllerd.service ActiveState) $(property workerd.service ActiveState)" 'active active'
    worker=$(property workerd.service MainPID)
    inside dpkg -i -R /packages >"$base/install.log" 2>&1
    is 'an upgrade leaves a running daemon alone' "$? $(property workerd.service MainPID)" "0 $worker"
    inside dpkg -r dtorch-controllerd dtorch-workerd >>"$base/install.log" 2>&1
    is 'packages are removed' "$?" 0
    is 'nothing runs any more' "$(inside sh -c "test -e /proc/$worker/exe || echo gone")" gone
    inside dpkg -P dtorch-controllerd dtorch-workerd >>"$base/install.log" 2>&1
    is 'and purged' "$?" 0
    is 'the authority of the cluster stays' "$(inside test -s /etc/dtorch/pki/ca.key && echo yes)" yes
}

[ "$(id -u)" -eq 0 ] || skip 'needs root'
findmnt -n -t cgroup2 >/dev/null || skip 'needs cgroup2, which is mounted nowhere'
if ! make_root; then
    echo "FAILED making the Debian to boot:"
    tail -n 5 "$base/debootstrap.log"
    echo 'units: 0 passed, 1 failed'
    exit 1
fi
[ "$build" != root-only ] || exit 0
[ -z "$packages_dir" ] || copy_root
if ! install_all; then
    tail -n 20 "$base/install.log"
    echo 'units: 0 passed, 1 failed'
    exit 1
fi
trap shut_down EXIT
if ! boot; then
    echo "FAILED systemd did not come up, see $base/console.log"
    echo 'units: 0 passed, 1 failed'
    exit 1
fi
if [ -z "$packages_dir" ]; then # a package does that itself
    inside systemd-sysusers
    inside systemd-tmpfiles --create 2>/dev/null
fi
inside systemctl daemon-reload
try_files
try_controllerd
try_workerd
try_journal
try_restarts
try_watchdog controllerd
try_watchdog workerd
try_stop
try_tls
[ -z "$packages_dir" ] || try_removal
[ $failed -eq 0 ] || inside journalctl -q -b -u 'dtorch-*' -o short-precise | tail -n 80
echo "units: $passed passed, $failed failed"
[ $failed -eq 0 ]
