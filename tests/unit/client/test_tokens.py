"""The token that calls go with: from where it comes, when it is read again, and that nobody sees it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from holdfast.access.tokens import make_token
from holdfast.client import AsyncClient, Client, Holdfast, NoToken, PermissionDenied, Unauthenticated
from holdfast.client.tokens import TokenSource, token_source
from tests.unit.client.scripted_server import Refusal, ScriptedServer

Code = grpc.StatusCode

SECRET = "hft_0123456789abcdef_" + "5" * 64


def test_a_token_comes_from_what_the_client_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert token_source() is None
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    assert [source() for source in (token_source(SECRET), token_source(lambda: SECRET)) if source] == [SECRET] * 2
    for source in (token_source(token_file=file), token_source(token_file=str(file))):
        assert source is not None
        assert source() == SECRET
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(file))
    of_file = token_source()
    assert of_file is not None
    assert of_file() == SECRET
    monkeypatch.setenv("HOLDFAST_TOKEN", "of-the-environment")
    of_environment = token_source()
    assert of_environment is not None
    assert of_environment() == "of-the-environment"
    given = token_source("given")
    assert given is not None
    assert given() == "given", "what is given counts more"
    with pytest.raises(ValueError, match="both"):
        token_source("a", "b")


def test_a_file_is_read_again_and_a_function_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    source = token_source(token_file=file)
    assert source is not None
    assert source() == "one"
    file.write_text("two")
    assert source.renew()
    assert source() == "two"
    assert not source.renew(), "it is the same"
    file.unlink()
    assert not source.renew()
    assert source() == "two", "a file that is just replaced is there again in a moment"
    file.write_text("")
    assert source() == "two"


@pytest.mark.parametrize("text", ["", "two words", "ä", "a\nb", "x" * 8193])
def test_what_is_no_token_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    source = token_source(token_file=file)
    assert source is not None
    with pytest.raises(NoToken, match="Expected a token in the file") as refused:
        source()
    assert not text or text not in str(refused.value)


def test_nothing_shows_it() -> None:
    app = Holdfast("localhost:7400", token=SECRET)
    client = AsyncClient("localhost:7400", token=SECRET)
    with Client("localhost:7400", token=SECRET) as blocking:
        for thing in (app, client, blocking, app.token, token_source(lambda: SECRET)):
            assert SECRET not in f"{thing!r} {thing}"
            assert SECRET[-20:] not in f"{thing!r} {thing}"


def make_source(texts: list[str]) -> TokenSource:
    """Another one each time when it is asked; the last one for ever."""
    source = token_source(lambda: texts.pop(0) if len(texts) > 1 else texts[0])
    assert source is not None
    return source


async def test_a_call_that_was_refused_goes_with_another_token_if_there_is_one(server: ScriptedServer) -> None:
    """Whoever replaces a token and takes the old one back at once makes no call fail."""
    refusal = Refusal(Code.UNAUTHENTICATED, "UNAUTHENTICATED", "The token is not valid.")
    server.on("ListQueues", refusal, b"")
    async with AsyncClient(server.address, token=make_source(["old", "new"]), retry=False) as client:
        await client.list_queues()
    assert server.tokens == ["Bearer old", "Bearer new"]


async def test_a_call_fails_if_there_is_no_other_token(server: ScriptedServer) -> None:
    refusal = Refusal(Code.UNAUTHENTICATED, "UNAUTHENTICATED", "The token is not valid.")
    server.on("ListQueues", refusal)
    async with AsyncClient(server.address, token="old") as client:
        with pytest.raises(Unauthenticated, match="not valid"):
            await client.list_queues()
    assert server.tokens == ["Bearer old"]


async def test_what_is_not_allowed_is_not_tried_again(server: ScriptedServer) -> None:
    server.on("ListQueues", Refusal(Code.PERMISSION_DENIED, "PERMISSION_DENIED", "Expected the right to observe."))
    async with AsyncClient(server.address, token="mine") as client:
        with pytest.raises(PermissionDenied):
            await client.list_queues()
    assert server.tokens == ["Bearer mine"]


async def test_a_client_without_a_token_that_it_was_told_of_says_so(server: ScriptedServer, tmp_path: Path) -> None:
    async with AsyncClient(server.address, token_file=tmp_path / "nowhere") as client:
        with pytest.raises(NoToken, match="nowhere"):
            await client.list_queues()


def test_a_made_token_is_one() -> None:
    draw: Callable[[int], bytes] = bytes
    source = token_source(make_token(draw).text)
    assert source is not None
    assert asyncio.run(asyncio.to_thread(source)).startswith("hft_")
