"""What a codec makes of payloads, results and errors, and what it refuses to read."""

import pickle
import random
import zlib
from dataclasses import replace

import pytest

from holdfast.client import (
    Ack,
    AsyncClient,
    ClaimRef,
    Codec,
    InvalidArgument,
    KeyMissing,
    NewTask,
    Schedule,
    TaskError,
    Unreadable,
    _coded,
)
from holdfast.client.codec import of_error, of_payload, of_result
from holdfast.client.enqueued import enqueue_each
from holdfast.proto.v1 import schedules_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.client.scripted_server import FIRST_ID, ScriptedServer, hand_out_what_is_enqueued

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
BOUND = of_payload("send")
SECRET = b'{"to":"ada@example.org"}'


@pytest.fixture
def codec() -> Codec:
    return Codec(keys={"2026": NEW, "2025": OLD}, key_id="2026")


class TestForm:
    def test_what_is_encrypted_is_read_again_and_shows_nothing(self, codec: Codec) -> None:
        sent = codec.encode(SECRET, BOUND)
        assert b"ada" not in sent
        assert codec.decode(sent, BOUND) == SECRET
        assert sent != codec.encode(SECRET, BOUND), "the same payload twice looks the same"
        assert len(sent) - len(SECRET) < 60

    def test_what_has_a_request_id_looks_the_same_when_it_is_handed_over_again(self, codec: Codec) -> None:
        sent = codec.encode(SECRET, BOUND, "signup-17")
        assert codec.decode(sent, BOUND) == SECRET
        assert sent == codec.encode(SECRET, BOUND, "signup-17")
        others = [codec.encode(SECRET, BOUND, "signup-18"), codec.encode(SECRET + b" ", BOUND, "signup-17")]
        others += [codec.encode(SECRET, of_payload("refund"), "signup-17"), codec.encode(SECRET, BOUND)]
        heads = {data[10:34] for data in (sent, *others)}
        assert len(heads) == 5, "no salt and nonce are used for two messages"

    def test_the_form_is_what_it_was_when_it_was_first_written(self) -> None:
        """So that tasks which wait somewhere can be read for ever."""
        kept = bytes.fromhex(
            "ff484631020432303235819857d3942ffc6d0d9a6c68aa736435c35d8685ab8a983a43c8439becb0e48367aee8633878c7ec"
            "f00060b7da437c4a8eb88ba95b2cd9f0d43894057d798948"
        )
        assert Codec(keys={"2025": OLD}).decode(kept, BOUND) == SECRET
        assert Codec().decode(b"\xffHF1\x01" + zlib.compress(SECRET), BOUND) == SECRET
        assert Codec().decode(b"\xffHF1\x00" + SECRET, BOUND) == SECRET

    def test_keys_are_rotated_while_tasks_of_the_old_one_wait(self, codec: Codec) -> None:
        before = Codec(keys={"2025": OLD}).encode(SECRET, BOUND)
        assert codec.decode(before, BOUND) == SECRET
        assert _coded.parse(codec.encode(SECRET, BOUND)).key_id == "2026"
        with pytest.raises(KeyMissing, match=r"encrypted with key 2025.*Add it to `keys`") as missing:
            Codec(keys={"2026": NEW}).decode(before, BOUND)
        assert missing.value.key_id == "2025"
        assert pickle.loads(pickle.dumps(missing.value)).key_id == "2025"

    def test_large_ones_are_compressed_first_if_that_helps(self, codec: Codec) -> None:
        text, noise = b"hold fast " * 1000, random.Random(7).randbytes(10_000)
        assert len(codec.encode(text, BOUND)) < 200
        assert codec.decode(codec.encode(text, BOUND), BOUND) == text
        assert not _coded.parse(codec.encode(noise, BOUND)).is_compressed
        assert not _coded.parse(Codec(keys={"k": OLD}, compress_above=None).encode(text, BOUND)).is_compressed

    def test_without_keys_small_ones_stay_as_they_are_and_what_looks_encoded_does_too(self) -> None:
        codec = Codec()
        assert codec.encode(SECRET, BOUND) is SECRET
        for odd in (b"\xffHF", b"\xffHF1\x02xyz", b""):
            assert codec.decode(codec.encode(odd, BOUND), BOUND) == odd


class TestRefusals:
    def test_what_was_changed_or_belongs_elsewhere_is_not_read(self, codec: Codec) -> None:
        sent = codec.encode(SECRET, BOUND)
        for place in range(len(sent)):
            changed = bytearray(sent)
            changed[place] ^= 1
            with pytest.raises(Unreadable):
                codec.decode(bytes(changed), BOUND)
        for length in range(len(sent)):
            with pytest.raises(Unreadable):
                codec.decode(sent[:length], BOUND)
        for other in (of_payload("refund"), of_result("send"), of_error("send")):
            with pytest.raises(Unreadable, match="belongs to another task"):
                codec.decode(sent, other)

    def test_what_is_not_encrypted_is_refused_unless_it_is_allowed(self, codec: Codec) -> None:
        plain = (SECRET, b"", Codec().encode(SECRET * 100, BOUND))
        for data in plain:
            with pytest.raises(Unreadable, match="not encrypted: reads_plain=True"):
                codec.decode(data, BOUND)
        lenient = Codec(keys={"2026": NEW}, reads_plain=True)
        assert [lenient.decode(data, BOUND) for data in plain] == [SECRET, b"", SECRET * 100]

    def test_what_grows_without_bound_is_refused(self) -> None:
        bomb = b"\xffHF1\x01" + zlib.compress(bytes(_coded.DECODED_BYTES_MAX + 1))
        assert len(bomb) < 100_000
        with pytest.raises(Unreadable, match="more than 67108864 bytes"):
            Codec().decode(bomb, BOUND)
        with pytest.raises(InvalidArgument) as refused:
            Codec().encode(bytes(_coded.DECODED_BYTES_MAX + 1), BOUND)
        assert (refused.value.reason, refused.value.field) == ("TOO_LARGE", "payload")

    def test_any_bytes_are_read_or_refused(self, codec: Codec) -> None:
        draw = random.Random(20)
        for _ in range(20_000):
            data = b"\xffHF1"[: draw.randrange(5)] + draw.randbytes(draw.randrange(60))
            for reader in (codec, Codec()):
                try:
                    reader.decode(data, BOUND)
                except Unreadable:
                    pass

    @pytest.mark.parametrize(
        ("arguments", "field"),
        [
            ({"keys": {}}, "keys"),
            ({"keys": {"k": b"short"}}, "keys"),
            ({"keys": {"k": "text" * 8}}, "keys"),
            ({"keys": {"k k": OLD}}, "keys"),
            ({"keys": 7}, "keys"),
            ({"keys": {"a": OLD, "b": NEW}}, "key_id"),
            ({"keys": {"a": OLD}, "key_id": "b"}, "key_id"),
            ({"keys": OLD.__getitem__}, "key_id"),
            ({"key_id": "a"}, "keys"),
            ({"errors": True}, "keys"),
            ({"compress_above": -1}, "compress_above"),
            ({"compress_above": True}, "compress_above"),
        ],
    )
    def test_arguments_are_checked_without_showing_a_key(self, arguments: dict[str, object], field: str) -> None:
        with pytest.raises(InvalidArgument) as refused:
            Codec(**arguments)  # type: ignore[arg-type]
        assert refused.value.field == f"codec.{field}"
        assert "short" not in str(refused.value)
        assert "texttext" not in str(refused.value)

    def test_no_key_is_shown(self, codec: Codec) -> None:
        assert repr(codec) == "Codec(keys=['2025', '2026'], key_id='2026')"
        assert repr(Codec(keys={"a": OLD}.get, key_id=lambda: "a")) == "Codec(keys=a function)"


class TestFunctions:
    def test_a_function_is_asked_once_for_each_key(self) -> None:
        asked: list[str] = []

        def find(key_id: str) -> bytes | None:
            asked.append(key_id)
            return {"a": OLD, "b": NEW}.get(key_id)

        newest = ["a"]
        codec = Codec(keys=find, key_id=lambda: newest[0])
        first = codec.encode(SECRET, BOUND)
        newest[0] = "b"
        assert _coded.parse(codec.encode(SECRET, BOUND)).key_id == "b"
        assert codec.decode(first, BOUND) == SECRET
        assert asked == ["a", "b"]
        unknown = Codec(keys={"c": OLD}).encode(SECRET, BOUND)
        for _ in range(3):
            with pytest.raises(KeyMissing):
                codec.decode(unknown, BOUND)
        assert asked == ["a", "b", "c"], "who floods a worker with ids does not flood the function"

    def test_a_function_that_fails_is_a_missing_key_that_says_so(self) -> None:
        def fail(key_id: str) -> bytes | None:
            raise ConnectionError("secret-store.internal")

        codec = Codec(keys=fail, key_id="a")
        with pytest.raises(KeyMissing, match=r"key a, and whoever was asked for it raised ConnectionError") as missing:
            codec.encode(SECRET, BOUND)
        assert "internal" not in str(missing.value)


class TestErrors:
    def test_texts_are_sealed_and_cut_to_what_servers_take(self) -> None:
        codec, bound = Codec(keys={"k": OLD}, errors=True), of_error("id")
        noise = random.Random(3).randbytes(40_000).hex()
        for text in ("", "card 4111 refused", "x" * 100_000, noise, "€" * 9000):
            sealed = codec.seal_text(text, bound)
            assert len(sealed) <= 16 * 1024
            assert "4111" not in sealed
            read = codec.open_text(sealed, bound)
            assert read == text or (read.endswith("…") and text.startswith(read.rstrip("…")))

    def test_what_cannot_be_read_is_shown_as_such(self) -> None:
        codec, bound = Codec(keys={"k": OLD}, errors=True), of_error("id")
        sealed = codec.seal_text("card 4111 refused", bound)
        assert codec.open_text(sealed[:-3], bound) == "(encrypted, and only its beginning was kept)"
        assert "belongs to another task" in codec.open_text(sealed, of_error("other"))
        assert "key k" in Codec(keys={"j": OLD}).open_text(sealed, bound)
        assert codec.open_text("TaskTimeout", bound) == "TaskTimeout"


class TestClient:
    async def test_what_goes_out_is_encrypted_and_comes_back_clear(self, server: ScriptedServer, codec: Codec) -> None:
        hand_out_what_is_enqueued(server)
        async with AsyncClient(server.address, codec=codec) as client:
            await client.enqueue(NewTask("mail", "send", SECRET))
            await client.enqueue_many([NewTask("mail", "send", SECRET, tenant="t")])
            await client.enqueue_many([NewTask("mail", "send", SECRET)] * 3)
            await client.enqueue_run(NewTask("mail", "send"), [SECRET] * 3)
            [claim] = await client.reserve(["mail"])
            follow_up = NewTask("mail", "send", SECRET)
            await client.ack_many([Ack(claim, b'"done: ada"', [follow_up])])
        assert claim.payload == SECRET
        requests = [*server.requests["Enqueue"], *server.requests["Ack"]]
        assert len(requests) == 5
        assert not any(b"ada" in request.SerializeToString() for request in requests)
        runs = [run for request in requests[:4] for run in request.runs]
        assert [len({*run.payloads}) for run in runs] == [3, 3], "each payload of a run is encrypted by itself"
        [ack] = server.requests["Ack"][0].items
        assert codec.decode(ack.follow_ups[0].payload, BOUND) == SECRET
        assert codec.decode(ack.result, of_result(claim.task_id)) == b'"done: ada"'

    async def test_one_claim_that_cannot_be_read_leaves_the_others(self, server: ScriptedServer, codec: Codec) -> None:
        good, bad = codec.encode(SECRET, BOUND), Codec(keys={"lost": OLD}).encode(SECRET, BOUND)
        claims = [
            pb.Claim(task_id=FIRST_ID, token=1, task=pb.TaskSpec(queue="mail", type="send", payload=payload))
            for payload in (good, bad)
        ]
        server.on("Reserve", pb.ReserveResponse(claims=claims))
        server.on("Fail", pb.FailResponse(outcomes=[pb.FailOutcome(failed=pb.Failed(state=pb.TASK_STATE_DEAD))]))
        async with AsyncClient(server.address, codec=Codec(keys={"2026": NEW}, errors=True)) as client:
            readable, unreadable = await client.reserve(["mail"], max_tasks=2)
            assert readable.payload == SECRET
            assert (unreadable.type, unreadable.queue) == ("send", "mail")
            assert "payload" not in repr(unreadable)
            with pytest.raises(KeyMissing, match="key lost"):
                _ = unreadable.payload
            await client.fail(unreadable, TaskError("ValueError", "of ada", "line 1"), dead=True)
        [item] = server.requests["Fail"][0].items
        assert item.error.type == "ValueError"
        assert "ada" not in item.error.message + item.error.traceback

    async def test_lookups_show_what_can_be_read(self, server: ScriptedServer, codec: Codec) -> None:
        sealing = Codec(keys={"2026": NEW}, errors=True)
        info = pb.TaskInfo(
            task_id="id", state=pb.TASK_STATE_DEAD, queue="mail", type="send",
            task=pb.TaskSpec(queue="mail", type="send", payload=codec.encode(SECRET, BOUND)),
            result=codec.encode(b"1", of_result("id")),
            last_error=pb.TaskError(type="E", message=sealing.seal_text("of ada", of_error("id"))),
        )  # fmt: skip
        info.attempts.add(error_type="E", error_message=sealing.seal_text("of bob", of_error("id")))
        server.on("GetTask", pb.GetTaskResponse(task=info))
        server.on("GetDeadLetter", pb.GetDeadLetterResponse(task=info))
        server.on("WaitTasks", pb.WaitTasksResponse(outcomes=[pb.WaitOutcome(task=info)]))
        async with AsyncClient(server.address, codec=codec) as client:
            for call in (client.get_task, client.get_dead_letter, client.wait_task):
                task = await call("id")
                assert task.task is not None
                assert task.last_error is not None
                assert (task.task.payload, task.result) == (SECRET, b"1")
                assert (task.last_error.message, task.attempts[0].error_message) == ("of ada", "of bob")
        async with AsyncClient(server.address, codec=Codec(keys={"2025": OLD})) as client:
            task = await client.get_task("id")
            assert task.task is not None
            assert task.last_error is not None
            with pytest.raises(KeyMissing):
                _ = task.task.payload
            with pytest.raises(KeyMissing):
                _ = task.result
            assert "key 2026" in task.last_error.message

    async def test_schedules_make_encrypted_tasks(self, server: ScriptedServer, codec: Codec) -> None:
        def put(request: schedules_pb2.PutScheduleRequest) -> schedules_pb2.PutScheduleResponse:
            shown = schedules_pb2.ScheduleInfo(queue=request.queue, name=request.name, spec=request.spec)
            return schedules_pb2.PutScheduleResponse(schedule=shown)

        server.on("PutSchedule", put)
        nightly = Schedule("nightly", "@daily", NewTask("mail", "send", SECRET))
        async with AsyncClient(server.address, codec=codec) as client:
            known = await client.put_schedule(nightly)
        assert known.schedule.task.payload == SECRET
        [request] = server.requests["PutSchedule"]
        assert codec.decode(request.spec.task.payload, BOUND) == SECRET

    async def test_what_does_not_fit_is_named_as_without_a_codec(self, server: ScriptedServer, codec: Codec) -> None:
        server.on("Enqueue", lambda request: pb.EnqueueResponse(outcomes=[pb.EnqueueOutcome()] * len(request.tasks)))
        wrong = replace(NewTask("mail", "send"), payload="text")  # type: ignore[arg-type]
        async with AsyncClient(server.address, codec=codec) as client:
            with pytest.raises(InvalidArgument) as refused:
                await client.enqueue(wrong)
            assert refused.value.field == "tasks[0].payload"
            with pytest.raises(InvalidArgument) as refused:
                await client.ack_many([Ack(ClaimRef("id", 1), "text")])  # type: ignore[arg-type]
            assert refused.value.field == "items[0].result"
        with pytest.raises(InvalidArgument) as refused:
            AsyncClient(server.address, codec="zlib")  # type: ignore[arg-type]
        assert refused.value.field == "codec"

    async def test_tasks_without_a_key_are_not_sent_and_may_be_handed_over_again(self, server: ScriptedServer) -> None:
        async with AsyncClient(server.address, codec=Codec(keys=lambda _: None, key_id="a")) as client:
            [outcome] = await enqueue_each(client, [NewTask("mail", "send", SECRET)], lambda accepted: accepted)
            with pytest.raises(KeyMissing):
                await client.enqueue(NewTask("mail", "send", SECRET))
        assert isinstance(outcome, Exception)
        assert getattr(outcome, "reason", "") == "KEY_MISSING"
        assert not server.requests
