"""The wire API: generated protobuf messages and the .proto files they come from."""
