"""Words for what is wrong with a call, as the parser of options found it."""

from __future__ import annotations

from typing import Any

import typer

# typer does not export click's base of usage errors, of which it may carry its own copy.
UsageError: Any = typer.BadParameter.__mro__[1]


def usage_text(error: Any) -> str:
    """One line without its mend, such as ``no such option: --tiem, did you mean --time?``"""
    message = error.format_message().rstrip(".").replace("\n", " ")
    return str(message[:1].lower() + message[1:].replace(". Did you mean", ": did you mean"))
