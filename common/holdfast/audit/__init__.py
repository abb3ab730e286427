"""What operators did and who was refused, as lines of files that cannot be changed unnoticed. Pure: `serving` writes.

chain.py   an entry, the line of a file that it is, and how lines are proved to be those that were written
"""
