"""The page of a run: series.py makes numbers of a history, svg.py pictures of numbers, page.py a page of pictures."""
