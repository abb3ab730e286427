"""The commands, a file per group: their options, their help, and nothing else. The only folder that knows typer.

root.py    the root of the tree: puts the groups together and runs a command line
shared.py  options that many commands have, and how help texts end
task_options.py  the options of a new task, which several commands have
"""
