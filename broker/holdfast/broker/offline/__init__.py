"""What is done to the data of a node that does not run: restored from a backup, recovered, looked at."""
