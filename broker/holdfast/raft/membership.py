"""Which changes of a group's members are allowed.

One member at a time: then any majority before the change and any majority after it have a replica in common, so no two
leaders can be elected side by side. A new member learns first and votes once it has caught up.

    ChangeRefusedError   nothing was changed, and why
"""

from dataclasses import dataclass

from holdfast.raft.messages import Configuration

PROMOTE_LAG_ENTRIES_MAX = 100  # how far behind a learner may be that becomes a voter

# Reasons. They are part of the wire API and never change their meaning.
NOT_LEADER = "NOT_LEADER"  # or not serving yet, or handing over
CHANGE_UNDER_WAY = "CHANGE_UNDER_WAY"
ALREADY = "ALREADY"  # the group is as desired: this change has been made before
VERSION_MISMATCH = "VERSION_MISMATCH"
NOT_ONE_CHANGE = "NOT_ONE_CHANGE"
LEADER_STAYS = "LEADER_STAYS"
NOT_CAUGHT_UP = "NOT_CAUGHT_UP"


@dataclass(eq=False)
class ChangeRefusedError(Exception):
    """Nothing was changed."""

    reason: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def check_change(now: Configuration, new: Configuration, expected_version: int, leader: str) -> None:
    """Raises `ChangeRefusedError` unless `new` may follow `now`, which is committed."""
    if (new.voters, new.learners) == (now.voters, now.learners):
        raise ChangeRefusedError(ALREADY, f"Expected a change, but version {now.version} is the same already.")
    if expected_version != now.version:
        raise ChangeRefusedError(
            VERSION_MISMATCH,
            f"Expected the change of version {now.version}, but it is meant for version {expected_version}.",
        )
    if new.version != now.version + 1:
        raise ChangeRefusedError(
            VERSION_MISMATCH, f"Expected version {now.version + 1} to be next, but the change makes {new.version}."
        )
    if leader not in new.voters:
        raise ChangeRefusedError(
            LEADER_STAYS, "Expected the leader to stay a voter, but it would not: hand over to another first."
        )
    if not _is_one_step(now, new):
        raise ChangeRefusedError(
            NOT_ONE_CHANGE,
            "Expected one learner to be added, one learner to become a voter or one member to be removed, "
            "but the change is another one.",
        )


def _is_one_step(now: Configuration, new: Configuration) -> bool:
    moved = [member for member in {*now.members, *new.members} if _part(now, member) != _part(new, member)]
    steps = {(_part(now, member), _part(new, member)) for member in moved}
    return len(moved) == 1 and steps <= {("", "learner"), ("learner", "voter"), ("voter", ""), ("learner", "")}


def _part(configuration: Configuration, member: str) -> str:
    if member in configuration.voters:
        return "voter"
    return "learner" if member in configuration.learners else ""


def with_learner(now: Configuration, replica: str) -> Configuration:
    """The next version with a new member; the same members if it is one already."""
    return _next(now, set(now.voters), {*now.learners, replica} - set(now.voters))


def with_voter(now: Configuration, replica: str) -> Configuration:
    """The next version, in which a learner votes."""
    return _next(now, {*now.voters, replica}, set(now.learners) - {replica})


def without(now: Configuration, replica: str) -> Configuration:
    """The next version without a member; the same members if it is none."""
    return _next(now, set(now.voters) - {replica}, set(now.learners) - {replica})


def _next(now: Configuration, voters: set[str], learners: set[str]) -> Configuration:
    return Configuration.of(now.version + 1, voters, learners)
