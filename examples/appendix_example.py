"""Where the most informative question is not the most useful one: the stylised example of the paper's appendix.

Hypotheses lie on a line, nearer and nearer to each other. BALD halves their number and ignores how little they
differ; EC² only tells apart what lies further apart than σ. `batchbalance analyse appendix-example` draws it.
"""

import math

from batchbalance.lab.paper.line_example import ask_bald, ask_ec2, worst_case


def main(num_hypotheses=256, sigma=1 / 16):
    """Print how many labels either needs in the worst case."""
    needed = {name: worst_case(num_hypotheses, sigma, ask) for name, ask in (("BALD", ask_bald), ("EC²", ask_ec2))}
    print(f"{num_hypotheses} hypotheses, stop at diameter {sigma:g}; labels needed in the worst case:")
    print(f"  BALD {needed['BALD']}  (⌈log₂ n⌉ = {math.ceil(math.log2(num_hypotheses))})")
    print(f"  EC²  {needed['EC²']}  (at most ⌈log₂ 1/σ⌉ = {math.ceil(math.log2(1 / sigma))})")
    return needed


if __name__ == "__main__":
    main()
