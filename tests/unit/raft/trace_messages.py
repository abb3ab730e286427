"""Messages of a trace as text and back: `append term=1 after=1/0 entries=2/1:no-op,3/1:x commit=1 round=4`.

An entry is index/term:what, where what is `no-op`, `probe`, `members(v2:ab+d)` (voters and learners) or its command.
"""

from collections.abc import Sequence

from holdfast.raft.codec import configuration_entry, decode_configuration
from holdfast.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    EntryKind,
    LogEntry,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)

_WITHOUT_COMMAND = {EntryKind.NO_OP: "no-op", EntryKind.PROBE: "probe"}
GRANTED, REFUSED, TRANSFER = "granted", "refused", "transfer"


def members_text(configuration: Configuration) -> str:
    return "+".join("".join(part) for part in (configuration.voters, configuration.learners) if part)


def _entry_text(entry: LogEntry) -> str:
    if entry.kind == EntryKind.CONFIGURATION:
        configuration = decode_configuration(entry.command)
        what = f"members(v{configuration.version}:{members_text(configuration)})"
    else:
        what = _WITHOUT_COMMAND.get(entry.kind) or entry.command.decode()
    return f"{entry.index}/{entry.term}:{what}"


def _entry(text: str) -> LogEntry:
    place, _, what = text.partition(":")
    index, term = (int(number) for number in place.split("/"))
    if what.startswith("members("):
        version, _, members = what.removeprefix("members(v").rstrip(")").partition(":")
        voters, _, learners = members.partition("+")
        return configuration_entry(index, term, Configuration.of(int(version), voters, learners))
    for kind, name in _WITHOUT_COMMAND.items():
        if what == name:
            return LogEntry(index, term, kind)
    return LogEntry(index, term, EntryKind.REGULAR, what.encode())


def message_text(message: Message) -> str:
    match message:
        case PreVote(term, last_index, last_term):
            return f"pre-vote term={term} last={last_index}/{last_term}"
        case PreVoteReply(term, granted):
            return f"pre-vote-reply term={term} {GRANTED if granted else REFUSED}"
        case RequestVote(term, last_index, last_term, transfer):
            return f"request-vote term={term} last={last_index}/{last_term}" + (f" {TRANSFER}" if transfer else "")
        case VoteReply(term, granted):
            return f"vote-reply term={term} {GRANTED if granted else REFUSED}"
        case Append(term, index, index_term, entries, commit_index, number, _):
            listed = f" entries={','.join(_entry_text(entry) for entry in entries)}" if entries else ""
            return f"append term={term} after={index}/{index_term}{listed} commit={commit_index} round={number}"
        case AppendReply(term, success, index, number):
            return f"append-reply term={term} {GRANTED if success else REFUSED} index={index} round={number}"
        case TimeoutNow(term):
            return f"timeout-now term={term}"


def parse_message(words: Sequence[str]) -> Message:
    """The message that `message_text` prints as these words."""
    kind, *rest = words
    flags = {word for word in rest if "=" not in word}
    fields = dict(word.split("=", 1) for word in rest if "=" in word)
    term, number = int(fields["term"]), int(fields.get("round", 0))
    index, index_term = (int(part) for part in fields.get("last", fields.get("after", "0/0")).split("/"))
    match kind:
        case "pre-vote":
            return PreVote(term, index, index_term)
        case "pre-vote-reply":
            return PreVoteReply(term, GRANTED in flags)
        case "request-vote":
            return RequestVote(term, index, index_term, TRANSFER in flags)
        case "vote-reply":
            return VoteReply(term, GRANTED in flags)
        case "append":
            entries = tuple(_entry(text) for text in fields["entries"].split(",")) if "entries" in fields else ()
            return Append(term, index, index_term, entries, int(fields["commit"]), number)
        case "append-reply":
            return AppendReply(term, GRANTED in flags, int(fields["index"]), number)
        case "timeout-now":
            return TimeoutNow(term)
    raise ValueError(f"Expected a message, but there is no {kind!r}.")
