"""String metrics: one metric, one file."""
