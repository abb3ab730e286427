"""The `holdfast` command.

main.py      the commands, their options and their help (the only file that knows typer)
calls.py     what the commands ask the server
servers.py   starts a server in this process, if its dependencies are installed
problems.py  what can go wrong: a line, what to do, and an exit code
output.py    tables for people, JSON for programs (the only file that knows rich)
times.py     durations and instants as people write them
"""
