"""Recording exchanges with a real server, without tokens, and with no more than our client reads."""

import json
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

RECORDED = Path(__file__).parent / "labelstudio.json"
READ = {
    "id", "data", "annotations", "predictions", "completed_by", "result", "was_cancelled", "lead_time", "model_version",
    "score", "task", "total", "tasks", "task_ids", "task_count", "created", "parsed_label_config", "label_config",
    "email", "sampling", "maximum_annotations", "title", "status_code", "file",
}  # fmt: skip
WHOLE = {"data", "result", "parsed_label_config"}  # kept with all that is in them


def read_part(value):
    """What our client reads of an answer."""
    if isinstance(value, list):
        return [read_part(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: each if key in WHOLE else read_part(each)
        for key, each in value.items()
        if key in READ and not (key == "id" and isinstance(each, str))
    }


def exchange_of(request, response):
    """One exchange: what was sent, and what of the answer is read."""
    parts = urlsplit(request.url)
    is_json = "json" in (request.headers.get("Content-Type") or "")
    return {
        "method": request.method,
        "path": parts.path,
        "params": dict(parse_qsl(parts.query)),
        "sent": json.loads(request.body) if request.body and is_json else None,
        "status": response.status_code,
        "answer": read_part(response.json()) if response.content else None,
    }


@contextmanager
def recording(server, path):
    """Write all exchanges but those about tokens to a file, if there is one to be."""
    found = []

    def take(response, **_):
        if response.status_code != 401 and "/api/token/" not in response.request.url:
            found.append(exchange_of(response.request, response))

    server._session.hooks["response"].append(take)
    yield
    server._session.hooks["response"].remove(take)
    if path is not None:
        lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in found)
        Path(path).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
