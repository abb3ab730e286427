"""Arguments and results as JSON: what a handler gets is what the caller gave, and the rest is refused by name."""

import inspect
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import InvalidArgument, NotJson
from holdfast.client.arguments import decode_call, decode_json, encode_call, encode_json, signature_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


def plain(first: Any, second: Any = "-", *, third: Any = 0) -> Any:
    return [first, second, third]


def with_rest(first: Any, *rest: Any, **named: Any) -> Any:
    return [first, *rest, named]


def only_positional(first: Any, second: Any = 2, /) -> Any:
    return [first, second]


def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What the function returns when its call has travelled."""
    payload = encode_call("f", signature_of(function), args, kwargs)
    args_there, kwargs_there = decode_call(payload)
    return function(*args_there, **kwargs_there)


@given(JSON, JSON, JSON)
def test_every_way_to_call_arrives_as_it_was_meant(a: Any, b: Any, c: Any) -> None:
    assert call(plain, a) == plain(a)
    assert call(plain, a, b) == plain(a, b)
    assert call(plain, a, third=c) == plain(a, third=c)
    assert call(plain, a, b, third=c) == plain(a, b, third=c)
    assert call(plain, first=a, third=c, second=b) == plain(a, b, third=c)
    assert call(with_rest, a, b, c) == with_rest(a, b, c)
    assert call(with_rest, a, other=b, more=c) == with_rest(a, other=b, more=c)
    assert call(only_positional, a, b) == only_positional(a, b)


def test_positional_arguments_are_an_array_and_keywords_an_object() -> None:
    signature = inspect.signature(plain)
    assert json.loads(encode_call("f", signature, [1, 2], {})) == [1, 2]
    assert json.loads(encode_call("f", signature, [], {"first": 1})) == {"first": 1}
    assert json.loads(encode_call("f", signature, [1], {"third": 3})) == {"first": 1, "third": 3}
    assert encode_call("f", inspect.signature(lambda: None), [], {}) == b"[]"


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [(plain, [], {}), (plain, [1, 2, 3], {}), (plain, [1], {"first": 1}), (plain, [1], {"unknown": 1})],
)
def test_arguments_that_the_function_would_not_take_are_refused_before_they_are_sent(
    function: Any, args: list[Any], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match=r"send_mail\(\) cannot be called like this"):
        encode_call("send_mail", signature_of(function), args, kwargs)


def test_positional_only_arguments_beside_keywords_cannot_travel() -> None:
    def mixed(first: Any, /, second: Any) -> None: ...

    with pytest.raises(NotJson, match="cannot be named"):
        call(mixed, 1, second=2)
    with pytest.raises(NotJson, match="cannot be named"):
        call(with_rest, 1, 2, other=3)


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"secret", math.nan, math.inf, complex(1), {("secret",): 1}, "\ud800secret"]
)
def test_what_is_not_json_is_refused_without_showing_it(value: object) -> None:
    with pytest.raises(NotJson) as refused:
        encode_call("pay", signature_of(plain), [value], {})
    assert "the arguments of pay" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_what_refers_to_itself_or_is_too_deep_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (ring, deep):
        with pytest.raises(NotJson):
            encode_json(value, "the result")
    with pytest.raises(NotJson):
        decode_json(b"[" * 100_000, "the payload")


@pytest.mark.parametrize("payload", [b"1", b'"text"', b"null", b"{", b"\xff", b"nonsense"])
def test_a_payload_that_holds_no_arguments_is_refused(payload: bytes) -> None:
    with pytest.raises(NotJson):
        decode_call(payload)


def test_a_method_is_no_task() -> None:
    with pytest.raises(InvalidArgument, match="is a method"):
        signature_of(Sender.send)


class Sender:
    def send(self) -> None: ...
