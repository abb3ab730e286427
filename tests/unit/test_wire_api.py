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
from holdfast.cluster.admin.cluster_service import ClusterAdmin
from holdfast.router.callers import Caller
from holdfast.router.methods import ALL, Method
from holdfast.router.own import OwnCalls
from holdfast.serving.refusals import RefusedError
from holdfast.serving.request_limits import request_limit
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


def missing_bound(method: Method) -> str:
    """What in its request is repeated without a bound; empty if nothing is."""
    try:
        request_limit(method.name, method.request, large_bytes_max=1)
    except LookupError as error:
        return str(error.args[0])
    return ""


@every_call
def test_all_that_is_repeated_in_its_request_has_a_bound(method: Method) -> None:
    problem = missing_bound(method)
    assert not problem, f"{problem}: it needs a bound in common/holdfast/serving/request_limits.py"


@every_call
async def test_a_router_knows_where_it_goes(method: Method) -> None:
    if OwnCalls(Mock(), Mock(), list).find(method.name) is not None:
        return
    if any(map(missing_bound, ALL)):
        pytest.skip("no server starts before all that is repeated has a bound")
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
