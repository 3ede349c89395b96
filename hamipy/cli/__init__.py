"""The commands; the only reader of the environment, and the only place that prints."""
