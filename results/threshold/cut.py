"""How many pairs of draws the threshold cut, from the records of runs.

python results/threshold/cut.py results/runs/threshold/dry-bean-head
"""

import sys
from pathlib import Path
from statistics import mean

from batchbalance.lab.records import read_runs

for run in read_runs([Path(folder) for folder in sys.argv[1:]]):
    rounds = [record for records in run.trials.values() for record in records if record["num_pairs"]]
    if rounds:
        shares = [1 - record["num_edges"] / record["num_pairs"] for record in rounds]
        print(
            f"{run.label}: {mean(shares):.0%} of the pairs cut in the mean of {len(rounds)} batches, "
            f"{mean(share > 0 for share in shares):.0%} of batches with a pair cut, "
            f"{mean(share == 1 for share in shares):.0%} without an edge"
        )
