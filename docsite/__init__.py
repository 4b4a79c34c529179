"""The documentation site: `make docs` writes what is generated, runs the notebooks, builds the site and checks it.

`reference/cli.md` comes from the commands, `reference/config.md` from the models of the settings, `reference/api.md`
from the public names, and the pages in `notebooks/` from the notebooks. All are kept in the repository, so that they
can be read without the site; a test fails when one is stale.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "site"
REPOSITORY = "https://github.com/batchbalance/batchbalance"
ADDRESS = "https://batchbalance.github.io/batchbalance/"
