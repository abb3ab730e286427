"""What every server of ours has: refusals and how they travel, logs, ports, what it counts."""
