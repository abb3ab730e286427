"""Which ready task is handed out next: the leader's pick, soft state over the ready index."""
