"""Waiting on another process always has a limit, and the error says what was waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rlinf_async.errors import PeerTimeout


def gave_up(limit_s: float, waiting_for: str) -> PeerTimeout:
    """The one wording of a wait that took too long."""
    return PeerTimeout(f"gave up after {limit_s:g} s waiting for {waiting_for}")


@contextlib.asynccontextmanager
async def deadline(limit_s: float, *, waiting_for: str) -> AsyncIterator[None]:
    """Bound the body to `limit_s` seconds.

    A TimeoutError that the body raises itself passes through unchanged.

    Raises:
        PeerTimeout: "gave up after 5 s waiting for <waiting_for>".
    """
    scope = asyncio.timeout(limit_s)
    try:
        async with scope:
            yield
    except TimeoutError as cause:
        if not scope.expired():
            raise
        raise gave_up(limit_s, waiting_for) from cause
