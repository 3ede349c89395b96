"""How many examples the property tests try: few by default, many times more with HYPOTHESIS_PROFILE=thorough."""

import os

from hypothesis import HealthCheck, settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def examples(count: int, *, steps: int = 30) -> settings:
    """Settings for `count` examples (the same ones each time), or for twenty times as many new ones when thorough."""
    return settings(
        max_examples=count * 20 if THOROUGH else count,
        stateful_step_count=steps,
        deadline=None,
        derandomize=not THOROUGH,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
