#!/usr/bin/env bash
# Stop what start-ceph-rgw.sh started on DATADIR.
#   stop-ceph-rgw.sh DATADIR          clean stop (0.5 s); start again on the same data later
#   stop-ceph-rgw.sh DATADIR --kill   SIGKILL all daemons at once, as a crash does
#   stop-ceph-rgw.sh DATADIR --wipe   SIGKILL, then delete DATADIR
set -uo pipefail
[ $# -ge 1 ] || { sed -n '2,5p' "$0" >&2; exit 64; }
D=$(cd "$1" 2>/dev/null && pwd) || exit 0
how=${2:-}
owned() {  # PID: a daemon of this DATADIR, still running?
  { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null | grep -qF -- "-c $D/ceph.conf "
}
if [ -n "$how" ]; then
  for n in rgw osd mon; do
    p=$(cat "$D/run/$n.pid" 2>/dev/null) || continue
    if owned "$p"; then kill -9 "$p"; fi
  done
fi
for n in rgw osd mon; do
  p=$(cat "$D/run/$n.pid" 2>/dev/null) || continue
  if owned "$p"; then
    kill "$p" 2>/dev/null
    for _ in $(seq 200); do owned "$p" || break; sleep 0.05; done
    if owned "$p"; then kill -9 "$p"; sleep 0.2; fi
  fi
  rm -f "$D/run/$n.pid"
done
if [ "$how" = --wipe ]; then rm -rf "$D"; fi
exit 0
