"""mbrace."""
