"""Names in the metadata of calls, as callers write them and servers read them."""

SHARD_KEY = "holdfast-shard"  # the shard that the call is about
ATTEMPT_KEY = "holdfast-attempt"  # 2 and more: the call was sent before
FIRST_KEY = "holdfast-first"  # the call was never sent before, and can be made anew with other ids
DETAILS_KEY = "grpc-status-details-bin"  # in the trailers of a refused call: google.rpc.Status
DOMAIN = "holdfast"  # of the reasons in typed refusals
FRAMES_KEY = "holdfast-frames"  # a caller asks for it, and the trailers of the answer say: the port, and who serves it
AUTHORIZATION_KEY = "authorization"  # `Bearer` and a token
CALLER_KEY = "holdfast-caller"  # for whom a router calls (serving/router_word.py)
