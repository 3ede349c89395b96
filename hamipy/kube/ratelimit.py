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

    def take(self) -> float:
        """Take a token, on credit if there is none; seconds to wait until it is really ours (0.0 now)."""
        self._fill()
        self._level -= 1
        return max(0.0, -self._level / self._rate)

    def try_take(self) -> bool:
        """Take a token if there is one."""
        self._fill()
        if self._level < 1:
            return False
        self._level -= 1
        return True

    def _fill(self) -> None:
        now = time.monotonic()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
