"""The worker: claims tasks of an app and runs their handlers.

worker.py      the worker as its users see it
session.py     one run of it: what happens to each task, and the warm shutdown
slots.py       how many tasks may run, and of which queues (pure)
jobs.py        one claimed task on its way through the worker, and how its handler ended (pure)
leases.py      for how long the tasks of an app are claimed (pure)
claiming.py    asks for tasks as slots become free
handlers.py    runs handlers: async ones on a loop, blocking ones on threads
heartbeats.py  extends leases while handlers run, and notices lost ones
presence.py    says that this worker is there, and hears what operators want of it
deadlines.py   ends attempts that take longer than their timeout
settling.py    reports how handlers ended, many at a time
standstill.py  notices that this process stood still
outages.py     goes on through lost connections
meters.py      what is counted, as Prometheus reads it (pure)
task_logs.py   log lines about tasks, with fields
ops.py         the HTTP port for probes and metrics
stopping.py    being asked to stop

Two threads at least: handlers never run on the worker's own loop, so that one that blocks cannot stop the heartbeats
of the others. What they have to say to each other passes through mailboxes (`mailboxes.py`).
"""

from holdfast.client.worker.session import WorkerReport
from holdfast.client.worker.worker import Worker

__all__ = ["Worker", "WorkerReport"]
