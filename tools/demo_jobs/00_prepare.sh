#!/usr/bin/env bash
# First of a pinned pair: writes what the second reads.
set -eu
seq 1000 | awk '{ sum += $1 } END { print sum }' > prepared
echo "prepared $(cat prepared)"
