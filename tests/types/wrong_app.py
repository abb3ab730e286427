"""Wrong uses of an app; never run, only checked: each line marked must be an error, and no other."""

from holdfast.client import Holdfast

app = Holdfast()


@app.task(queue="mail")
def send(to: str, subject: str = "hi") -> str:
    return f"{to}: {subject}"


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task(queue=17)  # type: ignore[call-overload, untyped-decorator]
def misplaced() -> None: ...


def mistakes() -> None:
    send(1)  # type: ignore[arg-type]
    send.enqueue(1)  # type: ignore[arg-type]
    send.enqueue()  # type: ignore[call-arg]
    send.enqueue("ada@example.org", "hello", "more")  # type: ignore[call-arg]
    send.enqueue("ada@example.org", topic="hello")  # type: ignore[call-arg]
    send.call(to=1)  # type: ignore[arg-type]
    send.options(delay="soon")  # type: ignore[arg-type]
    send.options(delay=60).enqueue(1)  # type: ignore[arg-type]
    send.options(color="red")  # type: ignore[call-arg]
    number: int = send.enqueue("ada@example.org").result()  # type: ignore[assignment]
    fetch.enqueue(number)  # type: ignore[arg-type]
    text: str = fetch.enqueue("http://example.org").result()  # type: ignore[assignment]
    app.enqueue_many([send("a"), text])  # type: ignore[arg-type]
    print(app.enqueue_many([send.call("a")])[0].id)  # type: ignore[union-attr]
    print(send.enqueue_many(["a"])[0].result())  # type: ignore[union-attr]
    app.task("send")  # type: ignore[call-overload]


async def asynchronous_mistakes() -> None:
    await send("ada@example.org")  # type: ignore[misc]
    print(send.enqueue_async("ada@example.org").id)  # type: ignore[attr-defined]
    await fetch.enqueue_async(1)  # type: ignore[arg-type]
    handle = await fetch.enqueue_async("http://example.org")
    content: bytes = handle.result()  # type: ignore[assignment]
    print(content)
