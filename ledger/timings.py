"""Every period and limit of the protocol in one Struct, so that tests scale all at once.

Source of the defaults: docs/ARCHITECTURE.md, "Defaults".
"""

from __future__ import annotations

import msgspec

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Periods in milliseconds. ``scaled`` divides all of them by one factor."""

    beat_ms: int = 60 * SECOND_MS
    """Between two beats of a node."""
    fresh_ms: int = 3 * MINUTE_MS
    """A node silent for longer takes no work, and its unclaimed messages are revoked."""
    lost_ms: int = 10 * MINUTE_MS
    """The running attempts of a node silent for longer are lost."""
    lease_ms: int = 30 * SECOND_MS
    """A leader silent for longer may be replaced."""
    leader_beat_ms: int = 12_500
    leader_tick_ms: int = 1 * SECOND_MS
    beats_poll_ms: int = 5 * SECOND_MS
    follow_min_ms: int = 1 * SECOND_MS
    follow_max_ms: int = 1_500
    """A candidate asks for the next page after a random time between these two."""
    mailbox_followed_ms: int = 10 * SECOND_MS
    """A worker's own look into its mailbox while its supervisor follows the journal."""
    mailbox_alone_ms: int = 2 * SECOND_MS
    """The same while nobody on the node follows."""
    worker_tick_ms: int = 200
    """A worker's look at its running job (local files only, no request)."""
    respawn_ms: int = 2 * SECOND_MS
    """A supervisor's look at its child processes."""
    overlap_short_ms: int = 10 * SECOND_MS
    overlap_middle_ms: int = 2 * MINUTE_MS
    overlap_middle_every_ms: int = 30 * SECOND_MS
    overlap_long_ms: int = 2 * HOUR_MS
    overlap_long_every_ms: int = 10 * MINUTE_MS
    """Tailing of facts: how far back a LIST starts, and how often the longer ones run."""
    ack_ms: int = 60 * SECOND_MS
    """A fact counts as acknowledged only within this time after its stamp."""
    fact_age_ms: int = 7 * DAY_MS
    """A fact whose stamp is further behind the journal is refused."""
    start_within_ms: int = 30 * SECOND_MS
    """Longest boot time between first putting a claim and exec."""
    exclusive_ms: int = 8 * MINUTE_MS
    """An exclusive job is killed when the bucket has not heard of its node for this long."""
    grace_ms: int = 30 * SECOND_MS
    """Between TERM and KILL."""
    gpu_release_ms: int = 30 * SECOND_MS
    """How long a GPU may stay in use after a job, or before one, until that blocks the slot."""
    log_flush_min_ms: int = 2 * SECOND_MS
    log_flush_max_ms: int = 30 * SECOND_MS
    outputs_patience_ms: int = 1 * DAY_MS
    """Outputs of which nothing could be uploaded for so long are given up."""
    retry_min_ms: int = 200
    retry_max_ms: int = 5 * SECOND_MS
    """Jittered back-off after a transient error."""

    def scaled(self, divisor: float) -> Timings:
        """The same Struct with every period divided by ``divisor`` (at least 1 ms each)."""
        return Timings(
            **{name: max(1, int(getattr(self, name) / divisor)) for name in self.__struct_fields__}
        )


LOG_FLUSH_BYTES = 256 * 1024
LOG_CAP_BYTES = 64 * 1024 * 1024
CHECKPOINT_EVERY_PAGES = 200
PAGE_MAX_FACTS = 256
PAGE_MAX_BYTES = 1024 * 1024
FACT_MAX_BYTES = 64 * 1024
BLOB_MAX_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 8 * 1024 * 1024
SNAPSHOT_MAX_BYTES = 256 * 1024 * 1024
SNAPSHOTS_KEPT = 16
OUTPUTS_MAX_FILES = 10_000
OUTPUTS_MAX_BYTES = 64 * 1024 * 1024 * 1024
