"""A real cluster on this machine, whose processes outlive whoever started them."""
