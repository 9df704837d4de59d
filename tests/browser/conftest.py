"""A real Airflow and a browser without a screen. `make browser` installs both programs and runs this folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import netlink
from tests.live.airflow import Airflow
from tests.live.conftest import DEMO
from tests.live.engines import LocalApps

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PICTURES = os.environ.get("LAUNCH_PICTURES", "")
"""The folder for pictures of the pages. Empty: none are taken."""
_TIMEOUT_MS = 60_000
"""For each step: a page loads slowly on a busy host that also runs an Airflow."""
_SCREEN = {"width": 1280, "height": 800}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(900))
        item.add_marker(pytest.mark.engine("local"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="`make browser` installs it")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no program chromium; `make browser` installs it on Debian")
    # Other tests start containers at the same time.
    without_netlink = tmp_path_factory.mktemp("chromium") / "chromium"
    without_netlink.write_text(f'#!/bin/sh\nexec {sys.executable} {netlink.__file__} {program} "$@"\n')
    without_netlink.chmod(0o755)
    with playwright.sync_playwright() as started:
        # Root has no sandbox; all pages are those of the Airflow below.
        browser = started.chromium.launch(executable_path=without_netlink, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def airflow(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Start an Airflow, unless there is no browser for it."""
    home = tmp_path_factory.mktemp("browser")
    (home / "root").mkdir()
    apps = LocalApps(home / "root")
    settings = {
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    }
    airflow = Airflow(home, {"local": apps.connection}, settings=settings, more_dags=DEMO)
    try:
        airflow.begin()
        yield airflow
    finally:
        airflow.end()
        apps.close(set())


@pytest.fixture(scope="session")
def context(browser: Browser, airflow: Airflow) -> Iterator[BrowserContext]:
    """Return what all pages share: the login, and the code of Airflow's pages, which is loaded once."""
    context = browser.new_context(base_url=airflow.url, viewport=_SCREEN)
    context.set_default_timeout(_TIMEOUT_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """The page of that Airflow, as the last test has left it.

    A failed test leaves a picture of it in the folder `.build/browser`; the next one gets a new page.
    """
    return context.pages[0] if context.pages else context.new_page()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    page = getattr(item, "funcargs", {}).get("page")
    if report.when == "call" and report.failed and page is not None:
        folder = Path(".build/browser")
        folder.mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in item.name)
        page.screenshot(path=folder / f"{name}.png")
        report.sections.append(("picture", str(folder / f"{name}.png")))
        page.close()
    return report


@pytest.fixture
def picture(page: Page) -> Callable[[str], None]:
    """Take a picture of the page for the documentation, if `LAUNCH_PICTURES` names a folder."""

    def picture(name: str) -> None:
        if PICTURES:
            page.mouse.move(0, 0)
            page.screenshot(path=Path(PICTURES) / f"{name}.png", animations="disabled")

    return picture
