"""Read by every Python that has this folder on its PYTHONPATH: records its S3 requests.

Each request that botocore sends, complete and signed, becomes one line of JSON in
``$WIRE_RECORDS/<pid>``: its method, its URL, its headers.
"""

from __future__ import annotations

import json
import os
from typing import Any

from botocore import handlers


def _record(request: Any, **_: Any) -> None:
    headers = [
        (name, text.decode("latin-1") if isinstance(text, bytes) else str(text))
        for name, text in request.headers.items()
    ]
    line = json.dumps([request.method, request.url, headers]) + "\n"
    path = os.path.join(os.environ["WIRE_RECORDS"], str(os.getpid()))
    # One write a line: a process that is killed leaves whole lines.
    record = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(record, line.encode())
    os.close(record)


handlers.BUILTIN_HANDLERS.append(("before-send.s3", _record))
