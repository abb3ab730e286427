"""Chaos: real brokers under load and faults, a history of what callers saw, and checkers that judge it."""
