"""Waiting for an event with a limit."""

import asyncio


async def happened(event: asyncio.Event, limit: float | None) -> bool:
    """Wait for `event`, at most `limit` seconds (None: for ever); whether it happened.

    Not `asyncio.wait_for`: before Python 3.12 that loses a cancellation that comes together with the event.
    """
    try:
        async with asyncio.timeout(limit):
            await event.wait()
    except TimeoutError:
        return False
    return True
