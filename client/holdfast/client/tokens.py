"""The token that calls go with: a text, a file that is read again, or a function that is asked again. No text that this
makes for people has it in it."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.client.errors import NoToken

TOKEN_VARIABLE = "HOLDFAST_TOKEN"
TOKEN_FILE_VARIABLE = "HOLDFAST_TOKEN_FILE"
AGAIN_S = 1.0  # a file is looked at, and a function asked, at most so often while calls are made

Token = str | Callable[[], str]

_TOKEN = re.compile(r"[!-~]{1,8192}")


class TokenSource:
    """`source()` is the token at this moment; raises NoToken if there has never been one."""

    __slots__ = ("_ask", "_next_s", "_text", "_where")

    def __init__(self, ask: Callable[[], str], where: str) -> None:
        self._ask = ask
        self._where = where  # for people
        self._text = ""
        self._next_s = 0.0

    def __repr__(self) -> str:
        return f"<token of {self._where}>"

    def __call__(self) -> str:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + AGAIN_S
            self._read()
        return self._text

    def renew(self) -> bool:
        """Looks at once. Whether there is another one."""
        before = self._text
        self._read()
        return self._text != before

    def _read(self) -> None:
        """One that was good stays in use while there is no other: a file may just be written."""
        try:
            text = self._ask().strip()
        except OSError as error:
            if not self._text:
                raise NoToken(self._where, error.strerror or type(error).__name__) from None
            return
        if _TOKEN.fullmatch(text):
            self._text = text
        elif not self._text:
            raise NoToken(self._where, "what is there is none" if text else "it is empty")


def token_source(token: Token | None = None, token_file: str | Path | None = None) -> TokenSource | None:
    """Of what a client was given; otherwise of the environment. None: calls go without."""
    if token is not None and token_file is not None:
        raise ValueError("Expected token or token_file, but got both.")
    if token is None and token_file is None:
        token = os.environ.get(TOKEN_VARIABLE) or None
        token_file = None if token else os.environ.get(TOKEN_FILE_VARIABLE) or None
        if token is not None:
            return _of_text(token, f"the environment {TOKEN_VARIABLE}")
    if token_file is not None:
        path = Path(token_file)
        return TokenSource(lambda: path.read_text(encoding="utf-8", errors="replace"), f"the file {path}")
    if token is None or isinstance(token, TokenSource):
        return token
    if callable(token):
        return TokenSource(token, "the function token=")
    return _of_text(token, "the argument token=")


def _of_text(text: str, where: str) -> TokenSource:
    return TokenSource(lambda: text, where)
