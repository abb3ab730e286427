"""What it means when a call to etcd fails: may it have been carried out, does another try help, what can a person do.

Works on the text of the answers, because etcd's gRPC codes are too coarse: UNAVAILABLE is all from "nobody there" to
"carried out, but too slowly to tell". The texts are those of etcd 3.4 to 3.6 and of gRPC; one that is not known here is
taken for the worst, a lost answer.
"""

import enum
from dataclasses import dataclass


class Cause(enum.Enum):
    NOT_DONE = "not done"  # it never arrived or was turned away: another member or a later try may do
    LOST = "lost"  # it may have been carried out, or not
    MISFIT = "misfit"  # no connection, and another try will hardly help: certificates
    TOKEN = "token"  # not done: a new token is needed
    DENIED = "denied"  # not done: the user may not do that
    REFUSED = "refused"  # not done, and never will be
    LEASE_GONE = "lease gone"  # not done
    COMPACTED = "compacted"  # not done: the revision is not known any more


@dataclass(frozen=True, slots=True)
class EtcdProblem:
    kind: Cause
    why: str  # of an endpoint: how it goes on after its address; of a refusal: a sentence


_NO_CONNECTION = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")

# Found in the text of a connection that was not made, the first that fits.
_CONNECTIONS = (
    ("Connection refused", Cause.NOT_DONE, "refuses connections (is etcd running there?)"),
    ("errors resolving", Cause.NOT_DONE, "has a host name that cannot be resolved"),
    ("DNS resolution failed", Cause.NOT_DONE, "has a host name that cannot be resolved"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        Cause.MISFIT,
        "has a certificate that was not issued by the authority (etcd_authority)",
    ),
    ("Hostname Verification", Cause.MISFIT, "has a certificate for another host name than that of the endpoint"),
    ("ALERT", Cause.MISFIT, "wants a certificate from us that it trusts (etcd_certificate, etcd_key)"),
    ("CERTIFICATE_REQUIRED", Cause.MISFIT, "wants a certificate from us (etcd_certificate, etcd_key)"),
    ("andshake", Cause.NOT_DONE, "does not speak TLS, but we do (etcd_authority is set)"),
    ("before receiving SETTINGS", Cause.NOT_DONE, "takes connections, but does not answer"),
    ("http1.x", Cause.NOT_DONE, "is not etcd, but speaks HTTP"),
    ("Socket closed", Cause.NOT_DONE, "closes every connection (does it want TLS? then set etcd_authority)"),
    ("Connection reset", Cause.NOT_DONE, "closes every connection (does it want TLS? then set etcd_authority)"),
)

# Found in the text of an answer, the first that fits.
_ANSWERS = (
    ("no leader", Cause.NOT_DONE, "has no leader (are a majority of the members of etcd running?)"),
    ("raft proposal dropped", Cause.NOT_DONE, "has no leader"),
    ("too many requests", Cause.NOT_DONE, "has too much to do"),
    ("not supported for learner", Cause.NOT_DONE, "is a learner, which does not serve"),
    ("not capable", Cause.NOT_DONE, "is still starting"),
    ("authentication failed", Cause.REFUSED, "etcd does not take the user or the password: check etcd_user and "
     "etcd_password."),
    ("authentication is not enabled", Cause.DENIED, "etcd knows no users, because authentication is not enabled."),
    ("invalid auth token", Cause.TOKEN, "etcd does not take its own token."),
    ("user name is empty", Cause.TOKEN, "etcd wants a user and a password: set etcd_user and etcd_password."),
    ("auth store is old", Cause.TOKEN, "etcd has changed its users."),
    ("revision in header is old", Cause.TOKEN, "etcd has changed its users."),
    ("permission denied", Cause.DENIED, "etcd denies access: grant the user a role with readwrite permission on the "
     "keys of the cluster."),
    ("requested lease not found", Cause.LEASE_GONE, "etcd does not know the lease any more."),
    ("has been compacted", Cause.COMPACTED, "etcd has forgotten this part of its history."),
    ("database space exceeded", Cause.REFUSED, "The database of etcd is full: compact and defragment it or raise its "
     "--quota-backend-bytes, and then disarm the alarm (etcdctl alarm disarm)."),
    ("corrupt cluster", Cause.REFUSED, "etcd has found its database to be corrupt: see its log."),
    ("too many operations", Cause.REFUSED, "etcd does not take so many operations in one commit (--max-txn-ops)."),
    ("duplicate key given", Cause.REFUSED, "etcd takes no commit that changes a key twice."),
    ("request is too large", Cause.REFUSED, "etcd does not take so many bytes in one commit (--max-request-bytes)."),
    ("key is not provided", Cause.REFUSED, "etcd has no empty keys."),
    ("too large lease TTL", Cause.REFUSED, "etcd does not grant leases that long."),
)  # fmt: skip

_REFUSING_CODES = ("INVALID_ARGUMENT", "PERMISSION_DENIED", "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED")

NO_ANSWER = EtcdProblem(Cause.LOST, "did not answer in time")


def judge(code: str, details: str) -> EtcdProblem:
    """Of a call that ended with this gRPC code and text."""
    if any(words in details for words in _NO_CONNECTION):
        for words, kind, why in _CONNECTIONS:
            if words in details:
                return EtcdProblem(kind, why)
        return EtcdProblem(Cause.NOT_DONE, f"cannot be reached ({details})")
    for words, kind, why in _ANSWERS:
        if words in details:
            return EtcdProblem(kind, why)
    if code == "UNAUTHENTICATED":
        return EtcdProblem(Cause.TOKEN, f"etcd does not know us: {details}.")
    if code == "DEADLINE_EXCEEDED":
        return NO_ANSWER
    if code in _REFUSING_CODES:
        return EtcdProblem(Cause.REFUSED, f"etcd refuses: {details} ({code}).")
    return EtcdProblem(Cause.LOST, f"failed ({details or code})")
