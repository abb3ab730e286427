"""`make demo`: ten thousand tasks, a killed worker, a killed server, and an account of every task at the end.

__main__.py   its options, and its end whatever happens
story.py      what happens, in order
processes.py  the server and the workers: real processes, as anybody would start them
tasks.py      the app whose handlers the workers run
record.py     what the handlers wrote down, and the verdict
display.py    what a person sees (the only file here that knows rich)
"""
