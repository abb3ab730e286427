"""A call of the wire API is in several places: what is missing of a new one is named here, with where it goes."""

import re
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast.broker.api.backups import BackupService
from holdfast.broker.api.dead_letters import DeadLetterService
from holdfast.broker.api.queues import QueueService
from holdfast.broker.api.schedules import ScheduleService
from holdfast.broker.api.shards import ShardService
from holdfast.broker.api.tasks import TaskService
from holdfast.cluster.admin.service import ClusterAdmin
from holdfast.router.callers import Caller
from holdfast.router.methods import ALL, Method
from holdfast.router.own import OwnCalls
from holdfast.serving.refusals import RefusedError
from holdfast.transport.channels import CallFailedError
from tests.unit.router.router_stage import Stage

# Who answers on a broker, by the service in the .proto file.
SERVANTS = {
    "Tasks": TaskService,
    "DeadLetters": DeadLetterService,
    "Queues": QueueService,
    "Schedules": ScheduleService,
    "Shards": ShardService,
    "Cluster": ClusterAdmin,
    "Backups": BackupService,
}
CLIENT = "".join(path.read_text() for path in (Path(__file__).resolve().parents[2] / "client").glob("**/*.py"))

every_call = pytest.mark.parametrize("method", [pytest.param(method, id=method.name) for method in ALL])


@every_call
def test_a_broker_answers_it(method: Method) -> None:
    servant, name = SERVANTS[method.service], re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
    assert hasattr(servant, name), f"{method.name} needs a method {name} of {servant.__module__}.{servant.__name__}"


@every_call
async def test_a_router_knows_where_it_goes(method: Method) -> None:
    if OwnCalls(Mock(), Mock(), list).find(method.name) is not None:
        return
    async with Stage(1) as stage:
        stage.brokers[0].on[method.name] = b""
        try:
            await stage.gateway.handle(method, b"", Caller(None, 0, time.monotonic() + 5, lambda: False))
        except (RefusedError, CallFailedError):
            pass  # of an empty request; it was sent somewhere
        except AssertionError:
            pytest.fail(
                f"{method.name} needs its shards in routing/calls.py or transport/over_shards.py, `_by_shard` in "
                "router/gateway.py if its request has a shard, or an answer of the router itself in router/own.py"
            )


@every_call
def test_the_client_has_it(method: Method) -> None:
    assert f'"{method.name}"' in CLIENT, f"{method.name} needs a method of AsyncClient, in client/holdfast/client"
