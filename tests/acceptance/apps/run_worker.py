"""Runs a worker through the library. The argument holds what `Worker` takes, as JSON; its report is printed as JSON."""

import json
import logging
import sys
from dataclasses import asdict

from holdfast.client import Worker
from tests.acceptance.apps import chores

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
print(json.dumps(asdict(Worker(chores.app, **json.loads(sys.argv[1])).run())))
