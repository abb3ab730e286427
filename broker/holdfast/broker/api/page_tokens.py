"""What the pages of lists end with, and the next ones begin with. Pure."""

import re

from holdfast.broker.policy import fields
from holdfast.machine.task_walk import is_place
from holdfast.serving.refusals import INVALID_FIELD, RefusedError

_PAGE_TOKEN = re.compile(r"[0-9a-f]{48}")
_DEAD_LETTER_TOKEN = re.compile(r"([0-9a-f]{48})-([0-9]{1,15})")
_HEX = re.compile(r"([0-9a-f]{2}){0,256}")
_TASK_PLACE = re.compile(r"([0-9a-f]{2}){1,1024}")
_PURGE_TOKEN = re.compile(r"(due|ready|subqueues)-([0-9]{1,15})-((?:[0-9a-f]{2}){0,1024})")


def _bad_page_token() -> RefusedError:
    return RefusedError(INVALID_FIELD, "Expected {field} as a page returned it, but it is not.", "page_token")


class PageTokens:
    """Reads them; refuses what no page ended with."""

    def page_token(self, text: str) -> bytes:
        """A place in a listing: 8 bytes of time and a task id, in hex; empty for the first page."""
        if text and not _PAGE_TOKEN.fullmatch(text):
            raise _bad_page_token()
        return bytes.fromhex(text)

    def dead_letter_page_token(self, text: str) -> tuple[int, bytes] | None:
        """Before when a letter must have died to count, and the last place; None for the first page."""
        if not text:
            return None
        found = _DEAD_LETTER_TOKEN.fullmatch(text)
        if found is None:
            raise _bad_page_token()
        return int(found[2]), bytes.fromhex(found[1])

    def queue_page_token(self, text: str) -> bytes:
        """The last queue of the page before; empty for the first page."""
        if text and not fields.QUEUE_NAME.fullmatch(text):
            raise _bad_page_token()
        return text.encode()

    def worker_page_token(self, text: str) -> bytes:
        """The last worker of the page before, in hex; empty for the first page."""
        if not _HEX.fullmatch(text):
            raise _bad_page_token()
        return bytes.fromhex(text)

    def task_page_token(self, text: str) -> bytes:
        """The last place of the page before, in hex; empty for the first page."""
        place = bytes.fromhex(text) if _TASK_PLACE.fullmatch(text) else b""
        if text and not is_place(place):
            raise _bad_page_token()
        return place

    def purge_page_token(self, text: str) -> tuple[str, int, bytes] | None:
        """The phase of a purge, up to when tasks count, and the last place; None for the first page."""
        if not text:
            return None
        found = _PURGE_TOKEN.fullmatch(text)
        if found is None:
            raise _bad_page_token()
        return found[1], int(found[2]), bytes.fromhex(found[3])
