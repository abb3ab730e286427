"""What servers and the light client share: how to run in the background, how to back off, names in
the metadata of calls. The standard library only."""
