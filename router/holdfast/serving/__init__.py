"""What every server of ours has: refusals and how they travel, logs, and the operators' HTTP port."""
