#!/bin/sh
# Make the virtual environment: setup.sh VENV EXTRA. Does nothing when it is up to date.
set -eu

say() { printf '%s\n' "$*" >&2; }

if [ $# != 2 ]; then
    say "usage: setup.sh VENV EXTRA, such as setup.sh .venv dev; make setup-dev and make setup call it"
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$1
extra=$2

find_python() {
    for python in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 || continue
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    say "trex needs Python 3.11 or newer; name one with PYTHON=/path/to/python3"
    exit 1
}

make_venv() {
    python=$(find_python)
    rm -rf -- "$venv"
    # Debian ships venv without ensurepip: what it leaves behind has no pip.
    if "$python" -m venv "$venv" >/dev/null 2>&1; then return; fi
    rm -rf -- "$venv"
    if "$python" -m virtualenv --version >/dev/null 2>&1; then
        "$python" -m virtualenv --quiet "$venv"
    elif command -v virtualenv >/dev/null 2>&1; then
        virtualenv --quiet --python "$python" "$venv"
    elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing Debian's python3-venv ..."
        apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends python3-venv >&2 </dev/null
        "$python" -m venv "$venv"
    else
        say "can't make a virtual environment: install python3-venv (Debian:" \
            "apt-get install python3-venv) or virtualenv, then try again"
        exit 1
    fi
}

# The stamp's name holds all that decides what is installed.
state=$(cat "$root/pyproject.toml" "$root/constraints.txt" "$0" | cksum | tr -d ' ')
stamp="$venv/.trex-$extra-$state"
if [ -e "$stamp" ] || [ -e "$venv/.trex-dev-$state" ]; then exit 0; fi

case $venv in */*) mkdir -p "$(dirname "$venv")" ;; esac
if [ ! -w "$(dirname "$venv")" ]; then
    say "can't write to $(dirname "$venv"): choose another place, as in make demo VENV=\$HOME/.trex-venv"
    exit 1
fi
[ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv

say "installing trex[$extra] into $venv ..."
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
    --constraint "$root/constraints.txt" --editable "$root[$extra]" </dev/null
rm -f "$venv"/.trex-"$extra"-*
: >"$stamp"
