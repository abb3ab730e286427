"""Whatever comes over a connection of frames, it ends that connection or is answered, and nothing is left of it."""

import asyncio
import random

import pytest

from holdfast.frames import codec
from holdfast.frames.hello import hello
from tests.long import IS_LONG
from tests.unit.serving.frame_stage import DEADLINE_S, ENQUEUE, NAME, Owner, RawCaller, frames_of, until

ROUNDS = 3_000 if IS_LONG else 100
KINDS = [*range(codec.HELLO - 1, codec.END + 3), codec.CALL, codec.CALL, codec.CANCEL]


def noise(draw: random.Random) -> bytes:
    """Frames that are nearly right, and bytes that are none."""
    parts = []
    for _ in range(draw.randrange(1, 8)):
        body = draw.randbytes(draw.choice([0, 0, 3, 8, 40, 300]))
        kind, call = draw.choice(KINDS), draw.randrange(4)
        if kind == codec.CALL and draw.random() < 0.8:
            metadata = draw.choice([b"", b"key\0value\0", b"holdfast-shard\0x\0", b"broken"])
            part = codec.encode_call(call, draw.randrange(80), draw.randrange(3), metadata, len(body)) + body
        else:
            part = codec.encode(kind, call, body) if kind else body
        if draw.random() < 0.1:
            part = part[: draw.randrange(len(part) + 1)]
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(4))
async def test_a_server_survives_whatever_is_sent(seed: int) -> None:
    draw = random.Random(seed)
    owner = Owner()
    server = owner.serve()
    await server.start("127.0.0.1", 0)
    for _ in range(ROUNDS // 4):
        caller = await RawCaller.connect(server.frames_port, greets=False)
        caller.send((hello(NAME, "noise") if draw.random() < 0.9 else b"") + noise(draw))
        if draw.random() < 0.5:
            caller.writer.write_eof()
            async with asyncio.timeout(DEADLINE_S):
                try:
                    while await caller.reader.read(1 << 16):
                        pass
                except ConnectionError:
                    pass
        await caller.close()
    await until(lambda: not frames_of(server).connections and not frames_of(server).calls)
    assert server.intake.bytes == 0
    caller = await RawCaller.connect(server.frames_port)
    caller.send(caller.call(1, ENQUEUE))
    assert await caller.answer(1) == owner.answer
    await caller.close()
    await server.stop(0)
