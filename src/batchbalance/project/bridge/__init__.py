"""Exchange with other labelling tools: their files, and a Label Studio server."""

from batchbalance.project.bridge.files import FORMATS, Format, tell_file, write_export
from batchbalance.project.bridge.labelstudio import Pulled, Pushed, pull, push, sync
from batchbalance.project.bridge.link import Link, link

__all__ = ["FORMATS", "Format", "Link", "Pulled", "Pushed", "link", "pull", "push", "sync", "tell_file", "write_export"]
