"""A hub of our own on the loopback interface: the requests that huggingface_hub makes for files, and nothing more."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40


class LocalHub:
    """files: {repository: {name: bytes}}, all at COMMIT, which `main` stands for; of data sets, "datasets/repository".

    gated: repositories that refuse; broken: {name: bytes after which the connection breaks, once}; status: answer to
    everything, if set. `requests` lists (method, name, range header) as they come.
    """

    def __init__(self, files):
        self.files, self.gated, self.broken, self.status = files, set(), {}, None
        self.requests = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @contextlib.contextmanager
    def running(self):
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join()

    def downloads(self):
        """Names whose content was asked for, in order."""
        return [name for method, name, _ in self.requests if method == "GET"]


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def log_message(self, *arguments):
        pass

    def _answer(self, *, body):
        match = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        if match is None:  # the library also asks for lists that have nothing to do with files
            return self._refuse(404, None)
        repo, revision, name = match.groups()
        self.hub.requests.append((self.command, name, self.headers.get("Range")))
        if self.hub.status:
            return self._refuse(self.hub.status, None)
        if repo in self.hub.gated:
            return self._refuse(403, "GatedRepo")
        if repo not in self.hub.files:
            return self._refuse(404, "RepoNotFound")
        if revision not in (COMMIT, "main"):
            return self._refuse(404, "RevisionNotFound")
        if name not in self.hub.files[repo]:
            return self._refuse(404, "EntryNotFound")
        return self._send(self.hub.files[repo][name], name, body=body)

    def _send(self, content, name, *, body):
        start = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1]) if self.headers["Range"] else 0
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if body:
            stop = self.hub.broken.pop(name, None)
            self.wfile.write(content[start:stop])
            if stop is not None:
                self.wfile.flush()
                self.close_connection = True

    def _refuse(self, status, code):
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()
