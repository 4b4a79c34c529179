"""What pages of the docs assume that a reader has: files in the folder, and names in Python."""

STAND_INS = {}
