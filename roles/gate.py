"""A gate before the bucket: closed for a while after a round of requests has failed.

Owns the back-off of a role that has other things to do than to wait: one failed request
closes the gate for all, so that an outage costs one request's time-out per pause, and what
is local goes on in between.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.errors import RequestError, TransientError
from roles.context import Context


class Gate:
    """Pauses double from ``retry_min_ms`` to ``retry_max_ms``, each of it between half and all."""

    def __init__(self, context: Context) -> None:
        self.refusal: RequestError | None = None
        """What a person must mend, if that is why the last round failed."""
        self._context = context
        self._pause_ms = context.timings.retry_min_ms
        self._opens_ms = 0

    @property
    def closed_for_ms(self) -> int:
        """0 where it is open."""
        return max(0, self._opens_ms - self._context.clock.boot_ms())

    def attempt(self, round_of_requests: Callable[[], None]) -> bool:
        """Make the round if the gate is open; whether it was made and went through."""
        if self.closed_for_ms:
            return False
        try:
            round_of_requests()
        except TransientError:
            self._close()
            return False
        except RequestError as error:
            self.refusal = error
            self._close()
            return False
        self.refusal = None
        self._pause_ms = self._context.timings.retry_min_ms
        return True

    def _close(self) -> None:
        pause_ms = self._context.rng.randint(-(-self._pause_ms // 2), self._pause_ms)
        self._opens_ms = self._context.clock.boot_ms() + pause_ms
        self._pause_ms = min(2 * self._pause_ms, self._context.timings.retry_max_ms)
