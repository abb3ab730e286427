"""`holdfast cluster up`: a real cluster on this machine, whose processes outlive whoever started them. The command line
loads `cluster` by name; `servers` starts each of them, `processes` tells them from others, and `state` is what is
written down.
"""
