"""Measure trex beside the least a lease queue can do, in the same run: `python -m bench`."""
