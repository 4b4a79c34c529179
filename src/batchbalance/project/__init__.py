"""A project: label your own data from the first item to the last."""
