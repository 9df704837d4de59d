"""Parts of a running task that operators, sensors and triggers share."""
