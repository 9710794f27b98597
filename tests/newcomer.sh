#!/bin/sh
# usage: newcomer.sh BUILD
# What stops somebody on a machine that is not as it should be: a wrong Python, none, no room, no network, a port in use, what an
# older build left, no root. Each time the commands work, or their last line says what is missing. The machine is played by small
# tricks: programs of other answers first in PATH, a tiny file system, namespaces. Ends with "newcomer: N passed, N failed".
set -u
build=$PWD/$1
top=$PWD
base=$PWD/build/newcomer
passed=0 failed=0 skipped=0
rm -rf "$base"
mkdir -p "$base/fake"
cp -r mk "$base/"
cd "$base" || exit 1
# An environment that is complete, as far as anybody asks.
mkdir -p whole/bin
cp mk/requirements*.txt whole/
printf '#!/bin/sh\nexit 0\n' >whole/bin/python
chmod +x whole/bin/python

fake() { # NAME LINE...: a program that goes first in PATH
    printf '#!/bin/sh\n' >"fake/$1"
    name=$1
    shift
    printf '%s\n' "$@" >>"fake/$name"
    chmod +x "fake/$name"
}

said() { # WHAT STATUS LAST-LINE COMMAND...: the status, and what the last line must match
    what=$1 status=$2 words=$3
    shift 3
    got=0
    PATH=$base/fake:$PATH "$@" >out 2>&1 </dev/null || got=$?
    if { [ "$got" -eq "$status" ] || { [ "$status" = any ] && [ "$got" -ne 0 ]; }; } 2>/dev/null && tail -n 2 out | grep -qE -- "$words"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $what: exit $got (wanted $status), the last lines do not say '$words':"
        tail -n 5 out
    fi
    rm -f fake/*
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped: $1"
}

venv() { sh mk/venv.sh "$1" mk/requirements.txt mk/requirements-models.txt; }
deps() { # PACKAGES: what is wanted; the environment is there
    echo "$1" >mk/packages.txt
    mkdir -p build
    rm -rf build/venv
    cp -r whole build/venv
    sh mk/deps.sh
}

# Python.
fake python3 'echo 3.9'
said 'an old Python' 1 'python3 is Python 3.9, and 3.11 to 3.14 is wanted: name another one: PYTHON=' venv made
[ ! -e made ] || { failed=$((failed + 1)); echo 'FAILED an old Python: something was made all the same'; }
fake python3 'echo 2.7'
said 'a very old one' 1 'is Python 2.7, and 3.11' venv made
said 'no Python' 1 '/nowhere/python3 is no Python that runs: install python3' env PYTHON=/nowhere/python3 sh mk/venv.sh made mk/requirements.txt mk/requirements-models.txt
fake python3 'case "$*" in *venv*) exit 1 ;; *) echo 3.11 ;; esac'
fake df 'printf "head\n/dev/x 9000 0 9000 0%% /\n"'
said 'Debian without python3-venv' 1 'cannot make an environment: install python3-venv' venv made

# Room.
fake python3 'echo 3.11'
fake df 'printf "head\n/dev/x 9000 8995 5 99%% /\n"'
said 'no room' 1 'made needs 6500 MB of disk, and 5 are free there' venv made

# What an older build left.
said 'an environment that is whole is left alone' 0 'whole holds what mk/requirements-models.txt names' venv whole
mkdir -p broken/bin
cp mk/requirements*.txt broken/
ln -s /nowhere/python3 broken/bin/python
fake python3 'echo 3.9'
said 'an environment whose Python is gone is no environment' 1 'is Python 3.9' venv broken
[ ! -e broken ] || { failed=$((failed + 1)); echo 'FAILED the broken environment is still there'; }

# Packages.
said 'all packages are there' 0 'holds what' deps make
fake id 'echo 1000'
said 'and no root' 0 'holds what' deps make
fake dpkg-query 'exit 1'
fake apt-get 'echo "E: cannot resolve" >&2; exit 100'
fake id 'echo 0'
said 'no network for packages' 1 'apt-get could not install make .*: is there a network' deps make
fake dpkg-query 'exit 1'
fake id 'echo 1000'
for tool in sh dirname sed awk grep cmp mkdir rm cp; do ln -s "$(command -v $tool)" fake/$tool; done
said 'neither root nor sudo' 1 'root must do that, or install sudo: apt-get install make' env PATH="$base/fake" sh -c '
    echo make >mk/packages.txt; sh mk/deps.sh'

# No network for Python's packages: for real, in a network namespace without one.
if unshare --net true 2>/dev/null; then
    said 'no network for PyTorch' 1 'could not be fetched .*: is there a network' \
        env PIP_RETRIES=0 PIP_CONFIG_FILE=/dev/null unshare --net sh mk/venv.sh made mk/requirements.txt mk/requirements-models.txt
else
    skip 'no network for PyTorch: needs root'
fi
rm -rf made

# LibTorch that an older build had found, and is not there any more.
mkdir -p tree/build/dev
cp -r "$top/Makefile" "$top/mk" tree/
echo 'TORCH_LIBS := -L/gone -ltorch_cpu' >tree/build/dev/config.mk
said 'LibTorch that an older build had found is looked for anew' 0 '^is forgotten$' \
    sh -c 'make -s -C tree config >found && ! grep /gone found && echo is forgotten'

# A port in use, a folder in use, no room for the state: the daemon's last line names it.
configure() { # NAME LINE...: a controller, in NAME.conf
    name=$1
    shift
    {
        printf '[Controller]\nClusterName=%s\nListen=%s/%s.sock\nAdminSocket=%s/%s.admin\n' "$name" "$short" "$name" "$short" "$name"
        printf 'MetricsListen=none\n'
        printf '%s\n' "$@"
    } >"$name.conf"
}
daemon=$build/bin/dtorch-controllerd
short=$(mktemp -d)
mkdir state other
configure first "StateDirectory=$base/state" StatusListen=127.0.0.1:0
"$daemon" --config first.conf >first.log 2>&1 &
first=$!
trap 'kill $first 2>/dev/null; rm -rf "$short"' EXIT
for _ in $(seq 600); do
    port=$(DTORCH_ADMIN_SOCKET=$short/first.admin "$build/bin/dtorchctl" -q diag dump --filter=name=status_page -p value --no-legend 2>/dev/null)
    [ -z "$port" ] || break
    sleep 0.1
done
port=$(echo "$port" | tr -dc '0-9.:')
configure second "StateDirectory=$base/other" "StatusListen=$port"
said 'a port in use' any "StatusListen=$port.*in use" "$daemon" --config second.conf
configure third "StateDirectory=$base/state" StatusListen=none
said 'a state folder in use' any 'state directory .* is held by process' "$daemon" --config third.conf
kill $first
wait $first 2>/dev/null
if unshare --mount true 2>/dev/null; then
    mkdir -p small
    said 'no room for the state' any 'cannot write .*small.*: No space left' unshare --mount sh -c '
        mount -t tmpfs -o size=4k tmpfs small && dd if=/dev/zero of=small/fill bs=4k count=1 2>/dev/null
        printf "[Controller]\nListen=$1/small.sock\nAdminSocket=$1/small.admin\nMetricsListen=none\nStatusListen=none\nStateDirectory=$PWD/small\n" >small.conf
        exec "$0" --config small.conf' "$build/bin/dtorch-controllerd" "$short"
else
    skip 'no room for the state: needs root'
fi
cd "$top" && rm -rf "$base"
echo "newcomer: $passed passed, $failed failed$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
[ $failed -eq 0 ]
