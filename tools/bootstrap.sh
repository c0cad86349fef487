#!/bin/sh
# Set up .venv: a virtual environment with the locked requirements and this checkout.
#
# Called by the Makefile; safe to repeat. Takes the first Python 3.11 or newer that can
# make a virtual environment, or the one that PYTHON names. Says in one line what is
# missing otherwise.
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "gpuq: $1" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

has_ensurepip() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Debian splits ensurepip off into a package that is named like the command.
venv_package() {
    case $1 in
    *python3.*) echo "${1##*/}-venv" ;;
    *) echo python3-venv ;;
    esac
}

python=
bare=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    is_new_enough "$candidate" || continue
    if has_ensurepip "$candidate"; then
        python=$candidate
        break
    fi
    bare=${bare:-$candidate}
done

if [ -z "$python" ]; then
    [ -n "$bare" ] || fail "Python 3.11 or newer is needed and was not found (PYTHON=... names one)"
    fail "$bare has no ensurepip: install the package $(venv_package "$bare") (apt-get install $(venv_package "$bare"))"
fi

# pip would put its cache into / without a home.
if [ -z "${HOME:-}" ]; then
    PIP_NO_CACHE_DIR=1
    export PIP_NO_CACHE_DIR
fi
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_NO_INPUT=1
PIP_ROOT_USER_ACTION=ignore
export PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INPUT PIP_ROOT_USER_ACTION

echo "gpuq: setting up .venv, once; this takes about a minute" >&2
.venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
.venv/bin/python -m pip install -qq --require-hashes -r requirements-dev.lock
.venv/bin/python -m pip install -qq --no-deps --no-build-isolation --editable .
