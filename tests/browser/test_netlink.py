"""The browser of these tests loads pages while other tests start and end containers."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
import time

import pytest

_INTERFACE = "launch-browser"
_CONNECTIONS, _PARTS = 6, 20


def ip(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *command], check=False, capture_output=True, text=True)


@pytest.fixture
def slow():
    """Return the URL of a page, and whether the network changed as often as it should while its parts were loaded."""
    if shutil.which("ip") is None:
        pytest.skip("there is no program ip to add an interface")
    made = ip("link", "add", _INTERFACE, "type", "veth", "peer", "name", "launch-other")
    if made.returncode:
        pytest.skip(f"an interface cannot be added: {made.stderr}")

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                text = "".join(f"<script src=/{n}></script>" for n in range(_PARTS))
            else:
                # A browser has six connections to a host. The next requests wait for one.
                parts.release()
                changed.wait(30)
                text = "window.loaded = (window.loaded || 0) + 1"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

    def change() -> None:
        for _ in range(_CONNECTIONS):
            parts.acquire(timeout=30)
        changes.append(ip("address", "add", "192.0.2.1/32", "dev", _INTERFACE).returncode)
        changes.append(ip("link", "set", _INTERFACE, "up").returncode)
        # A browser that watches the network ends the waiting requests now.
        time.sleep(1)
        changed.set()

    changes: list[int] = []
    parts, changed = threading.Semaphore(0), threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threads = [threading.Thread(target=server.serve_forever), threading.Thread(target=change)]
        for thread in threads:
            thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", changes
        server.shutdown()
        for thread in threads:
            thread.join()
    ip("link", "delete", _INTERFACE)


def test_a_page_is_loaded_while_the_network_changes(browser, slow) -> None:
    url, changes = slow
    page = browser.new_page()
    failed: list[str | None] = []
    page.on("requestfailed", lambda request: failed.append(request.failure))
    page.goto(url)
    loaded = page.evaluate("window.loaded")
    page.close()

    assert failed == []
    assert loaded == _PARTS
    assert changes == [0, 0]
