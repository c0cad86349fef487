#!/usr/bin/env bash
# Stop what start-seaweedfs.sh started on DATADIR.
#   stop-seaweedfs.sh DATADIR          stop (2 s); start again on the same data later
#   stop-seaweedfs.sh DATADIR --kill   SIGKILL at once, as a crash does
#   stop-seaweedfs.sh DATADIR --wipe   SIGKILL, then delete DATADIR
set -uo pipefail
[ $# -ge 1 ] || { sed -n '2,5p' "$0" >&2; exit 64; }
D=$(cd "$1" 2>/dev/null && pwd) || exit 0
how=${2:-}
owned() {  # PID: this DATADIR's server, still running?
  { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null | grep -qF -- "-dir=$D/data "
}
p=$(cat "$D/run/weed.pid" 2>/dev/null) || p=
if [ -n "$p" ] && owned "$p"; then
  # A graceful end takes weed some 16 s of waiting for its own streams; what it has
  # acknowledged is in its files long before that, so it gets 2 s.
  if [ -n "$how" ]; then kill -9 "$p"; else kill "$p"; fi
  for _ in $(seq 40); do owned "$p" || break; sleep 0.05; done
  if owned "$p"; then kill -9 "$p"; sleep 0.2; fi
fi
rm -f "$D/run/weed.pid"
port=$(cat "$D/run/port" 2>/dev/null) || port=
if [ -n "$port" ]; then       # sockets that weed leaves behind
  for i in 1 2 3 4 5 6 7 8 9; do rm -f /tmp/seaweedfs-*-grpc-$((port + i)).sock; done
fi
if [ "$how" = --wipe ]; then rm -rf "$D"; fi
exit 0
