"""Weighted turns between tenants: how many tasks a tenant may give when its turn comes."""

from typing import NamedTuple

WEIGHT_MIN = 1
WEIGHT_MAX = 100


class Turn(NamedTuple):
    tasks: int
    carry: int  # for the tenant's next turn; forgotten when it has no more tasks


def turn(weight: int, lightest: int, carry: int = 0) -> Turn:
    """A turn of a tenant of that weight, where `lightest` is the smallest weight among those that take turns.

    The lightest gives one task, the others in proportion, with what does not make a whole task carried over. So turns
    are as short as they can be, none is empty, and over many rounds the shares are exactly those of the weights.
    """
    tasks, carry = divmod(weight + carry, lightest)
    return Turn(tasks, carry)


class WeightsSeen:
    """The weights of the tenants that take turns now: how many have which, and so which is the smallest."""

    __slots__ = ("_counts", "_lightest")

    def __init__(self) -> None:
        self._counts = [0] * (WEIGHT_MAX + 1)
        self._lightest = WEIGHT_MAX

    @property
    def lightest(self) -> int:
        """WEIGHT_MAX if nobody takes turns."""
        return self._lightest

    def add(self, weight: int) -> None:
        self._counts[weight] += 1
        self._lightest = min(self._lightest, weight)

    def remove(self, weight: int) -> None:
        self._counts[weight] -= 1
        while self._lightest < WEIGHT_MAX and not self._counts[self._lightest]:
            self._lightest += 1
