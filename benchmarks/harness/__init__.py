"""What the benchmarks are made of: a real server process, load processes, readings, results and their display."""
