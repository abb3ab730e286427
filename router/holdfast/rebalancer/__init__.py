"""`holdfast rebalance --watch`: carries out plans when nodes come, drain, or are gone for good. Nobody imports it:
`main` is loaded by name. `decisions` says what to do next (pure), `watcher` does it, `election` sees to it that only
one does, and `server` puts them together.
"""
