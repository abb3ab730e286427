"""Calls in flight, as routers and clients have them. The rules are those of `holdfast.routing`; here are the timers and
tasks that these need.

channels.py       the seam to the network: one call to one server
grpc_channels.py  over gRPC; frame_channels.py: over frames; negotiated.py: over frames where a server has them
blocking_link.py  frames for a thread that waits for its answers itself
in_memory.py      the twin of both in memory
sending.py        one call until it is answered, watched while its server says nothing
over_shards.py    calls about several shards; parts.py: their parts, at the same time; giving_up.py: ended early
reserving.py      claims over several shards
"""
