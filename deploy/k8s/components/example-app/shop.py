"""The tasks of a small shop. Producers and workers share this file."""

import time

from holdfast.client import Holdfast

app = Holdfast()  # at HOLDFAST_ADDRESS


@app.task(queue="orders")
def ship(number: int) -> str:
    time.sleep(0.2)
    return f"order {number} is on its way"
