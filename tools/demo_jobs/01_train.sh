#!/usr/bin/env bash
# Second of a pinned pair: fails unless the first has written its sum.
set -eu
[[ $(cat prepared) == 500500 ]]
echo "trained on $(cat prepared)"
