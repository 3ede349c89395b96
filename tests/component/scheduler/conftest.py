from collections.abc import AsyncIterator

import pytest

from tests.component.scheduler import world as harness


@pytest.fixture
async def world() -> AsyncIterator[harness.World]:
    async with harness.world() as made:
        yield made
