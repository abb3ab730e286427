"""Frames: how callers and servers talk beside gRPC, with far less work for each call. Pure: bytes in, frames out. The
sockets are in `serving/frame_server` and `transport/frame_channels`; docs/internals/frames.md has the protocol.

codec.py      frames as bytes, and bytes cut into frames
metadata.py   what goes with a call beside its request
hello.py      what both sides say first
"""
