"""Calls in flight, as routers and clients have them: sent until they are answered, in parts, given up, watched while
their server is silent, and claims over several shards. The rules are those of `holdfast.routing`; here are the timers
and tasks that these need. `channels` is the seam to the network, with a twin in `memory`.
"""
