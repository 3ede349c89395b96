"""Exponential backoff with full jitter (M. Brooker, "Exponential Backoff And Jitter", 2015)."""

import random


class Backoff:
    """Delays between attempts: uniform in 0..min(cap, base * 2^n), so that many clients spread out.

    Args:
        base: seconds, upper end of the first delay.
        cap: seconds, upper end of every delay.
    """

    def __init__(self, base: float = 0.2, cap: float = 10.0) -> None:
        self.base, self.cap, self.attempts = base, cap, 0

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling = min(self.cap, self.base * 2.0 ** min(self.attempts, 30))
        self.attempts += 1
        return random.uniform(0.0, ceiling)

    def reset(self) -> None:
        """An attempt succeeded: start over."""
        self.attempts = 0
