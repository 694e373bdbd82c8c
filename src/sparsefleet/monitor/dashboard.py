"""The web page of a job: static files, and the job's state as server-sent events."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from sparsefleet.monitor.http_server import HttpServer, Request, Response
from sparsefleet.monitor.job_file import JobFile, find_job
from sparsefleet.monitor.job_watch import JobWatch

__all__ = ["dashboard_routes", "serve_dashboard"]

_PAGES = Path(__file__).parent / "pages"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}


def dashboard_routes(watch: JobWatch) -> Mapping[str, Callable[[Request], Response]]:
    """Return the routes for the page."""

    def show_file(request: Request) -> Response:
        name, content_type = _FILES[request.path]
        return Response((_PAGES / name).read_bytes(), content_type)

    def show_job(_: Request) -> Response:
        return Response(json.dumps(watch.full()).encode(), "application/json")

    def show_events(_: Request) -> Response:
        return Response(watch.events(), "text/event-stream")

    routes: dict[str, Callable[[Request], Response]] = dict.fromkeys(_FILES, show_file)
    routes["/job.json"] = show_job
    routes["/events"] = show_events
    return routes


def serve_dashboard(
    place: str, address: str = "127.0.0.1:0", *, ended: threading.Event | None = None
) -> None:
    """Watch a job launched by another process, and serve its page until `ended` is set.

    place: the log directory of the job. Prints the address. Raises ConfigError if there is no job
    that can be watched.
    """
    folder = find_job(place)
    watch = JobWatch(folder)
    token = secrets.token_urlsafe(24)
    server = HttpServer(address, dashboard_routes(watch), token=token)
    watch.start()
    job = JobFile.read(folder)
    script = job.script if job is not None else place
    print(f"dashboard for {script} at http://{server.endpoint}/?token={token}", flush=True)
    try:
        (ended or threading.Event()).wait()
    finally:
        watch.stop()
        server.close()
