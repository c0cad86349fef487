#!/usr/bin/env bash
# Show that a stranger's first commands work: clone what is committed into an empty folder,
# with an empty HOME, and run the given make targets there (default: check test).
#
# Usage: tools/clean_clone_check.sh [TARGET...]
set -euo pipefail

checkout=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

if [[ -n $(git -C "$checkout" status --porcelain) ]]; then
    echo "note: what is not committed is not in the clone" >&2
fi
git clone --quiet "$checkout" "$scratch/clone"
mkdir "$scratch/home"

for name in $(compgen -e); do
    case $name in
    AWS_* | GPUQ_* | XDG_* | VIRTUAL_ENV | PYTHONPATH) unset "$name" ;;
    esac
done
if (($# == 0)); then
    set -- check test
fi
cd "$scratch/clone"
HOME="$scratch/home" make --no-print-directory "$@"
