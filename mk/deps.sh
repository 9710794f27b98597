#!/bin/sh
# usage: deps.sh
# Installs the packages of mk/packages.txt that are missing, and nothing else, then the Python environment build/venv
# (not with WITH_TORCH=no). Calls no package manager when all are there.
set -u
here=$(dirname "$0")
venv() {
    [ "${WITH_TORCH:-auto}" = no ] || sh "$here/venv.sh" build/venv "$here/requirements.txt" "$here/requirements-models.txt"
}
missing=
if ! command -v dpkg-query >/dev/null; then
    echo "deps: this is no Debian: install what mk/packages.txt names yourself, then see make config"
    venv
    exit
fi
for package in $(sed 's/#.*//' "$here/packages.txt" | awk 'NF { print $1 }'); do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "deps: all packages are installed"
    venv
    exit
fi
echo "deps: installing$missing"
run=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "deps: root must do that, or install sudo: apt-get install$missing" >&2; exit 1; }
    run=sudo
fi
# shellcheck disable=SC2086  # lists
$run env DEBIAN_FRONTEND=noninteractive apt-get update -o Acquire::Retries=3 -q </dev/null &&
    $run env DEBIAN_FRONTEND=noninteractive apt-get install -o Acquire::Retries=3 -y -q --no-install-recommends $missing </dev/null || {
    echo "deps: apt-get could not install$missing (its words are above): is there a network, and room in /var?" >&2
    exit 1
}
venv
