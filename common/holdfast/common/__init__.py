"""What servers and the light client share: how to back off. The standard library only."""
