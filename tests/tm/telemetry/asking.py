"""This module asks the pages that a manager and a consumer serve over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

WAIT_S = 30


def asked(port: int, page: str = "", authorization: str | None = None) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the body."""
    headers = {} if authorization is None else {"Authorization": authorization}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{page}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:  # noqa: S310 — of this machine
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def said(port: int, page: str = "", authorization: str | None = None) -> tuple[int, Any]:
    """The status, and what the page says."""
    status, _, body = asked(port, page, authorization)
    return status, json.loads(body)
