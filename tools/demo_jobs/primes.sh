#!/usr/bin/env bash
# Count primes in Python for work_us microseconds.
set -euo pipefail
work_us=650000
end_us=$((${EPOCHREALTIME/[^0-9]/} + work_us))

python3 -c '
import sys, time
end_s, limit, rounds = int(sys.argv[1]) / 1e6, 2000, 0
while time.time() < end_s:
    found = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, limit))
    assert found == 303
    rounds += 1
    time.sleep(0.05)  # the demo'"'"'s own processes share these cores
print(f"counted {found} primes below {limit}, {rounds} times")
' "$end_us"
