"""Programs for those who work on trex."""
