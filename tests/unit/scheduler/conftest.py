import pytest

from hamipy.core.family import Families
from hamipy.scheduler.webhook import Webhook
from tests.unit.scheduler.reviews import OURS


@pytest.fixture
def webhook() -> Webhook:
    return Webhook(Families(), scheduler_name=OURS)
