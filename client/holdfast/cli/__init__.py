"""The `holdfast` command.

main.py         where it begins
runner.py       runs a command line: every expected failure is a line and an exit code, never a traceback
commands/       the commands, their options and their help, a file per group (the only folder that knows typer)

calls.py        what the commands ask the server
dead_letters.py retry or discard many dead letters
schedule_calls.py  what the commands about schedules ask
workers.py      loads an application and runs a worker for it
worker_logs.py  what a worker writes on standard error
bench.py        how fast this server is, seen from here
servers.py      starts a server in this process, if its dependencies are installed

cluster_calls.py   what the commands about clusters ask
health.py          what is well and what is not: the map compared with what the nodes say
plans.py           carries out a plan to its end
handovers.py       waits until a node may be stopped
watching.py        what changes in a cluster from one look to the next
local_clusters.py  a cluster on this machine, whose processes are started by code that is loaded by name
backups.py         what the commands about backups do
cluster_output.py, cluster_records.py  what the commands about clusters print

top.py, top_output.py  all that goes on, at one look

problems.py     what can go wrong: a line, what to do, and an exit code
queue_output.py, schedule_output.py  what the commands about queues and schedules print
policies.py     what can be set for a queue: names, how it is written and shown
options.py      values of options as people write them
output.py       tables and progress bars for people (the only file that knows rich)
records.py      one line of JSON for programs
times.py        durations and instants as people write them
"""
