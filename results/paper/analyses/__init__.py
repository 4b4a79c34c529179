"""The paper's figures that are not learning curves, and one of ours; `analyse.py` runs them by name."""
