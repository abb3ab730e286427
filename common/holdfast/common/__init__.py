"""What servers and the light client share: how to run in the background, how to back off. The standard library only."""
