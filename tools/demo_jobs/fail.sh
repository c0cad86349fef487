#!/usr/bin/env bash
# End with rc 3, as a program that does not find its data.
set -eu
echo "no data set named imagenet-22k" >&2
exit 3
