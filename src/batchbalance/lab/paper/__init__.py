"""The learning curves of the paper by name, with its settings."""
