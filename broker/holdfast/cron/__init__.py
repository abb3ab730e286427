"""Cron expressions and their ticks: pure but for the rules of time zones, and apart from the rest of Holdfast.

`expressions` makes a timetable of what people write, `ticks` says which of its ticks to act on, and `errors` has what
can be wrong. `fields`, `walls` and `zones` are parts of `timetables`.
"""
