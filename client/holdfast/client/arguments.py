"""Arguments and results of tasks as JSON: what `enqueue` sends and a handler gets. Pure functions.

    send("ada")                      ["ada"]                          positional arguments: an array
    send(to="ada")                   {"to": "ada"}                    keywords: an object
    send("ada", subject="hi")        {"to": "ada", "subject": "hi"}   both: named by the function's signature

So anything that can write JSON can enqueue: `holdfast enqueue mail send '{"to": "ada"}'` reaches the same handler.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.client.errors import InvalidArgument, NotJson

JSON_HEADERS = {"content-type": "application/json"}

_ASCII_BEGINNINGS = frozenset(b"%c" % character for character in b"[{")

# One encoder for all: compact, and with NaN refused because it is not JSON and other readers would stumble over it.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode_json(value: object, what: str) -> bytes:
    """The bytes of a value; `what` names it in the error, which never shows the value itself."""
    try:
        return _encode(value).encode()
    except TypeError as error:
        raise NotJson(what, str(error)) from None
    except UnicodeEncodeError:
        raise NotJson(what, "it holds text that cannot be written as UTF-8") from None
    except ValueError:
        raise NotJson(what, "it holds a number that is not finite, or refers to itself") from None
    except RecursionError:
        raise NotJson(what, "it is nested too deeply") from None


# As `json.loads` reads text, without finding out each time how.
_decode = json.JSONDecoder().decode


def decode_json(data: bytes, what: str) -> Any:
    """The value of some bytes."""
    try:
        # Two bytes tell UTF-8, in which nearly all is, from what else `json` takes.
        is_utf8 = data[:1] in _ASCII_BEGINNINGS and data[1:2] != b"\0"
        return _decode(data.decode("utf-8", "surrogatepass")) if is_utf8 else json.loads(data)
    except (ValueError, RecursionError):
        raise NotJson(what, "it is something else") from None


def encode_call(name: str, signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """The payload of a call. Arguments that the function would not take are refused now, not in the worker.

    >>> encode_call("send", inspect.signature(lambda to, subject="": None), ["ada"], {"subject": "hi"})
    b'{"to":"ada","subject":"hi"}'
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}() cannot be called like this: {error}") from None
    what = f"the arguments of {name}"
    if not kwargs:
        return encode_json(args, what)
    if not args:
        return encode_json(kwargs, what)
    if bound.args and _positional_only(signature, len(args)):
        raise NotJson(what, "some are positional and cannot be named, so that keywords do not fit beside them")
    named: dict[str, object] = {}
    for parameter, value in bound.arguments.items():
        if signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[parameter] = value
    return encode_json(named, what)


def _positional_only(signature: inspect.Signature, count: int) -> bool:
    """Whether one of the first `count` positional arguments goes to a parameter that has no name to the caller."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    named = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.POSITIONAL_ONLY in kinds or (inspect.Parameter.VAR_POSITIONAL in kinds and count > named)


def decode_call(payload: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the keyword arguments of a payload.

    >>> decode_call(b'["ada"]'), decode_call(b'{"to": "ada"}'), decode_call(b"")
    ((['ada'], {}), ([], {'to': 'ada'}), ([], {}))
    """
    if not payload:
        return [], {}
    arguments = decode_json(payload, "the payload")
    if isinstance(arguments, list):
        return arguments, {}
    if isinstance(arguments, dict):
        return [], arguments
    raise NotJson("the arguments in the payload", "it holds neither an array nor an object of them")


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """What a function takes; a method of a class is not a task, because its object stays in this process."""
    signature = inspect.signature(function)
    first, name = next(iter(signature.parameters), None), getattr(function, "__qualname__", "")
    if first == "self" and "." in name:
        sentence = f"{name} is a method: a task is a plain function, found again by its name."
        raise InvalidArgument(sentence, reason="INVALID_FIELD", field="function")
    return signature
