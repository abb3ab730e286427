"""What can be allowed, and how far a call reaches."""

from enum import StrEnum
from typing import Final


class Right(StrEnum):
    """What a role may allow. None includes another one."""

    ENQUEUE = "enqueue"  # hand over tasks
    WORK = "work"  # claim tasks, and settle them
    OBSERVE = "observe"  # look at tasks, queues, workers and the cluster
    OPERATE = "operate"  # change tasks, queues and schedules that are there
    ADMINISTER = "administer"  # change the cluster and who may do what, and make and restore backups


class Reach(StrEnum):
    """What a call is about, and so what a role must cover to allow it."""

    TASKS = "tasks"  # single tasks: their queues and tenants
    QUEUES = "queues"  # whole queues, with the tasks of all tenants
    CLUSTER = "cluster"  # everything
    ROUTES = "routes"  # where queues are: any right on them will do, and without queues any identity


RIGHTS: Final = tuple(Right)
EVERY_TENANT: Final = None  # in the place of a tenant: the tasks of all of them
EVERY_QUEUE: Final = None  # in the place of a queue: all of them
