"""What a shard has only while this node leads it; `leader` puts it together. What it decides is written to the log."""
