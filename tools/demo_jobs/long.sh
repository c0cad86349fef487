#!/usr/bin/env bash
# Runs for an hour unless it is cancelled; then it says so and ends in order.
trap 'echo "asked to end after $SECONDS s"; exit 143' TERM
for _ in $(seq 18000); do
    sleep 0.2
done
