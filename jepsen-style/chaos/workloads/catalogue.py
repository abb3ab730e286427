"""All workloads by name."""

from collections.abc import Callable
from functools import partial

from chaos.workloads.base import Setting, Workload
from chaos.workloads.calls import Calls
from chaos.workloads.chains import Chains
from chaos.workloads.idlers import Idlers
from chaos.workloads.lifecycle import KILLERS, Lifecycle
from chaos.workloads.limited import Limited
from chaos.workloads.probes import Probes
from chaos.workloads.steady import Steady
from chaos.workloads.storms import Storms

WORKLOADS: dict[str, Callable[[Setting], Workload]] = {
    "lifecycle": Lifecycle,
    "calls": Calls,
    "storms": Storms,
    "limits": Limited,
    "chains": Chains,
    "idlers": Idlers,
    "killers": partial(Lifecycle, guilt=KILLERS),
    "steady": Steady,
}
IN_ALL = ("lifecycle", "calls", "storms", "limits", "chains")  # `killers` has the queues of `lifecycle`


def make_workloads(names: str, setting: Setting) -> list[Workload]:
    """Those, and probes of every shard, without which nothing is known of their time."""
    chosen = list(IN_ALL) if names == "all" else names.split(",")
    return [Probes(setting), *(WORKLOADS[name](setting) for name in chosen)]
