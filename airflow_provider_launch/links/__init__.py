"""Links from a task to its app."""
