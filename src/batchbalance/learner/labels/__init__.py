"""Storage of labels: a log of events in one SQLite database, for `Learner` and for projects."""

from batchbalance.learner.labels.log import Event, EventLog, NewEvent
from batchbalance.learner.labels.names import Id, Label, other, plain

__all__ = ["Event", "EventLog", "Id", "Label", "NewEvent", "other", "plain"]
