"""Scores of points and joint objectives of batches, one file per family."""
