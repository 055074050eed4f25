"""Who waits for whom: what is said of calls that last, and which of them can never end."""
