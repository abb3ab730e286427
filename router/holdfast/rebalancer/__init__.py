"""`holdfast rebalance --watch`: carries out plans when nodes come, drain, or are gone for good."""
