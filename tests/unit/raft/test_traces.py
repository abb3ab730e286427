"""Elections, replication, members and snapshots, message by message: `traces/*.txt`, in the words of trace_player.py.

If what replicas say has changed on purpose, `REGENERATE=1` writes the files anew. Read the difference: it is all that
the change does.
"""

import os
from pathlib import Path

import pytest

from holdfast.raft.engine import ShardRaft
from tests.simulation.raft_seeds import ENGINES
from tests.unit.raft.trace_player import play, scenes

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path) -> None:
    expected = scenes(path.read_text(encoding="utf-8"))
    if os.environ.get("REGENERATE"):
        path.write_text("".join(play(scene) for scene in expected), encoding="utf-8")
        return
    for scene in expected:
        assert play(scene) == scene


@pytest.mark.parametrize("ablation", ENGINES.values(), ids=list(ENGINES))
def test_a_rule_that_is_gone_is_seen(ablation: type[ShardRaft]) -> None:
    texts = [path.read_text(encoding="utf-8") for path in TRACES]
    assert not all(comes_out(scene, ablation) for text in texts for scene in scenes(text))


def comes_out(scene: str, engine: type[ShardRaft]) -> bool:
    try:
        return play(scene, engine) == scene
    except AssertionError:
        return False  # it did not even get to the beginning of the scene
