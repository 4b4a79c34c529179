"""`python -m batchbalance.cli`: the command, where its script is not on the path."""

from batchbalance.cli import main

main()
