"""Version 1 of the wire API."""
