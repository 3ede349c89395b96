"""A token bucket."""

import time


class Bucket:
    """Allows `rate` takes a second on average, and `burst` at once.

    Args:
        rate: tokens a second.
        burst: most tokens that gather.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._level = rate, burst, burst
        self._at = time.monotonic()

    def try_take(self) -> bool:
        """Take a token if there is one."""
        now = time.monotonic()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True
