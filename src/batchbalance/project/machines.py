"""What a project does with labels by machines: take them in, and use them without mistaking them for people's."""

import os

from batchbalance.project.store import ProjectStore
from batchbalance.project.suggestions import Suggested, add_suggestions


class MachineLabels:
    """The part of a ``Project`` about labels by machines."""

    store: ProjectStore

    def suggest(self, path: str | os.PathLike[str], by: str) -> Suggested:
        """Add labels that a machine suggests. They are measured on the audit set, and never count as anybody's answer.

        Args:
            path: a CSV, TSV, JSONL or Parquet file with the columns id and label, and optionally confidence; or with
                id and a column of probabilities for each class.
            by: the name of the source. A newer file of the same name replaces the older one.
        """
        return add_suggestions(self.store, path, by)
