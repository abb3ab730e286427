"""What every server has. Each file can be called from outside, but for those that are named as parts.

settings.py, starting.py  how it gets its configuration, and says why it does not start
logs.py           structured logs; the only file that knows structlog
call_server.py    a server of calls, over both transports; served.py: what it answers
grpc_server.py    over gRPC, with bounds; intake.py: how far bodies of calls are let in; part: health.py
frame_server.py   over frames
request_limits.py what one request may be; part: scanner.py                       (pure)
authentication.py who calls; parts: jwts.py, router_word.py (for whom a router calls)
authorization.py  whether a call is allowed; part: requested.py (what it is about)
access_rules.py   the rules that a server goes by at the moment
refusals.py       why a call is refused; statuses.py: the same as gRPC says it
ops.py            the port for probes and metrics; part: scrapes.py
metrics.py        what servers count in the same way
audited.py        which calls are noted for the audit, and what of them; audit_log.py: writes it
reloading.py      certificates that change while it runs
tls.py            what its ports show; tls_door.py: lets connections in once they have shaken hands
openness.py       says that it asks nobody who he is, if that is so
ports.py, open_files.py, memory.py  what it asks of the system
"""
