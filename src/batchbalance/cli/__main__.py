"""`python -m batchbalance.cli`: the command, for when its script is not on the path."""

from batchbalance.cli import main

main()
