"""Cron expressions and their ticks: pure but for the rules of time zones, and apart from the rest of Holdfast."""
