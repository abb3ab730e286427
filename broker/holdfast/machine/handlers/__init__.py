"""One handler per kind of entry: guards first, then transitions, one outcome per item."""
