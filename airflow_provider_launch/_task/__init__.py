"""The inside of a running task: what operators, sensors and triggers share."""
