#!/bin/sh
# usage: fresh.sh demo|test|both
# README's two commands from nothing: in a Debian 12 that debootstrap makes, where only the package sources are configured and make
# and git installed, `make demo` and `make test` in a clone of what is committed; the first one again, and by a user without root.
# The Debian is made anew in build/fresh-root and removed when all went well. What this machine says of its network goes along:
# resolver, hosts, certificates, the settings of apt and pip, and the proxy variables. MIRROR= is where Debian comes from. Output goes
# to build/fresh-COMMAND.log, which is also shown.
# Says how long each took, what came over the network and how much the disk grew. Ends with "fresh: N passed, N failed".
set -u
what=$1
base=$PWD/build/fresh-root
root=$base/root
mirror=${MIRROR:-http://deb.debian.org/debian}
passed=0 failed=0

if [ "$what" = inside ]; then # as the first process of its own namespaces: FOLDER COMMAND...
    cd "$2" || exit
    shift 2
    mount --make-rprivate / && mount --bind . . && cd "$PWD" || exit
    mount -t proc proc proc && mount --rbind /sys sys && mount --rbind /dev dev && mount -t tmpfs tmpfs run || exit
    mkdir -p .old && pivot_root . .old && umount -l /.old || exit
    cd /srv/dtorch && "$@" # not exec: who ends without a parent is waited for by the first process
    exit
fi

is() { # WHAT STATUS: 0 is good
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $1: exit $2"
    fi
}

received() { # bytes that came to this machine so far, loopback apart
    awk '/:/ && !/^ *lo:/ { sub(".*:", ""); n += $1 } END { printf "%.0f\n", n }' /proc/net/dev
}

used() { du -smx "$root" | cut -f1; }

make_root() {
    rm -rf "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase --include=make,git,ca-certificates bookworm "$root" "$mirror" >"$base/debootstrap.log" 2>&1 || return 1
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    for file in /etc/pip.conf "$HOME/.config/pip/pip.conf"; do
        [ ! -r "$file" ] || cp "$file" "$root/etc/pip.conf"
    done
    [ ! -r /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    grep -lsE 'Proxy|Verify-|CaInfo|Check-' /etc/apt/apt.conf /etc/apt/apt.conf.d/* | while read -r file; do
        cp "$file" "$root/etc/apt/apt.conf.d/"
    done
    git clone --quiet --no-hardlinks . "$root/srv/dtorch"
}

enter() { # COMMAND...: in the Debian, with no variable but those of the network
    # shellcheck disable=SC2046  # words
    unshare --mount --pid --fork --kill-child env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        $(env | grep -iE '^(https?_proxy|no_proxy|all_proxy|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|PROXY|DEFAULT_TIMEOUT))=[^ ]*$') \
        sh "$PWD/tests/system/fresh.sh" inside "$root" "$@"
}

try() { # NAME COMMAND...
    name=$1 log=$PWD/build/fresh-$1.log
    shift
    began=$(date +%s) bytes=$(received) disk=$(used)
    { enter "$@" 2>&1; echo $? >"$base/status"; } </dev/null | tee "$log"
    status=$(cat "$base/status")
    echo "fresh: $*: $(($(date +%s) - began)) s, $((($(received) - bytes) / 1000000)) MB received by this machine," \
        "$(($(used) - disk)) MB of disk, processor load $(cut -d' ' -f1 /proc/loadavg)"
    is "$*" "$status"
}

if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
    echo 'fresh: skipped: needs root and debootstrap'
    echo 'fresh: 0 passed, 0 failed, 1 skipped'
    exit 0
fi
if ! make_root; then
    echo "FAILED making the Debian: $(tail -n 1 "$base/debootstrap.log")"
    echo 'fresh: 0 passed, 1 failed'
    exit 1
fi
case $what in
demo | both)
    try demo make demo
    grep -q 'all of it was checked' build/fresh-demo.log
    is 'the demonstration went to its end' $?
    try demo-again make demo
    chroot "$root" useradd --create-home ana && chroot "$root" chown -R ana: /srv/dtorch
    try demo-by-a-user runuser -u ana -- env HOME=/home/ana make demo
    ;;
esac
case $what in
test | both) try test make test ;;
esac
[ $failed -ne 0 ] || rm -rf "$base"
echo "fresh: $passed passed, $failed failed"
[ $failed -eq 0 ]
