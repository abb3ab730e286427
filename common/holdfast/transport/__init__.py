"""Calls in flight, as routers and clients have them: sent in parts, given up, watched while their server is silent.
The rules are those of `holdfast.routing`; here are the timers and tasks that these need, and nothing outside the
standard library. What sends a call is handed in."""
