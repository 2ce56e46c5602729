"""Files: reading records and texts, writing answers, resuming, remote storage."""
