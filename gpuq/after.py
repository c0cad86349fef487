"""``--after``: for which jobs' ends a job waits, as people name them.

Owns Slurm's forms of ``--dependency`` that gpuq knows, and the refusal of the others with the
mend. What follows from a dependency is ``scheduling.aside``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuq.client import Client
from gpuq.render import say
from gpuq.selectors import select
from gpuq.view import View
from ledger.arrays import member_of
from ledger.errors import RequestError
from ledger.events import ENDS, Dependency
from scheduling.aside import how_it_stands

_KINDS = {f"after{end}": end for end in ENDS}

_FORMS = "say ID, afterok:ID, afterany:ID or afternotok:ID; several with commas"


def parse_after(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Kind of end (one of ``ENDS``) and name of each job in ``afterok:A:B,afterany:C``.

    A job without a kind must end ok. Raises RequestError on anything else.
    """
    for text in texts:
        for part in text.split(","):
            kind, colon, names = part.strip().partition(":")
            if not colon:
                kind, names = "afterok", kind
            end = _KINDS.get(kind.lower())
            if end is None or "?" in names or not all(names.split(":")):
                raise RequestError(f"--after {text!r} is nothing to wait for: {_FORMS}")
            for name in names.split(":"):
                yield end, name


def dependencies(client: Client, view: View, texts: Iterable[str]) -> tuple[Dependency, ...]:
    """What ``--after`` says, with the ids of the jobs; each once.

    Raises RequestError for a job that the ledger does not know.
    """
    found: dict[Dependency, None] = {}
    for end, name in parse_after(texts):
        each = Dependency(job=select(client, view, name), end=end)
        member = member_of(each.job)
        if member is not None:
            whole = f"a job can wait for a whole array, not for a member: say {member[0]}"
            raise RequestError(f"--after {name}: {whole}")
        stands = how_it_stands(view.state, each.job)
        if stands.is_end and not stands.meets(end):
            say(f"{each.job} has ended already, and not so: the job will end DEPENDENCY_NEVER")
        found[each] = None
    return tuple(found)


def texts_of(after: Iterable[Dependency]) -> list[str]:
    """As ``--after`` reads them."""
    return [str(each) for each in after]
