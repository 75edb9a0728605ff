"""Take the pictures of the schedule pages in docs/images again, from the demo of ``make demo-ui``.

    python examples/flower/record.py            # all pictures, in three minutes
    python examples/flower/record.py --wait 20  # sooner: the timeline has fewer runs

It needs the development tools, Chromium and pngquant: ``apt-get install chromium chromium-driver
pngquant``. Look at each picture before you commit it.
"""

import argparse
import base64
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browsers import SETTLE, Browser, chromium  # noqa: E402 - after the path
from tests.support.servers.machine import find_program  # noqa: E402

IMAGES = ROOT / "docs" / "images"
DEMO = HERE / "demo.py"
#: The zone of the browser, which the pages show. Not UTC, so that a reader sees the offset.
ZONE = "Europe/Berlin"
WIDTH = 1280
#: Above the heading of a cropped picture.
MARGIN = 10
HEADING = "return Math.round(document.querySelector('.page-header').getBoundingClientRect().top)"
#: Until the timeline is full of runs, the one-off has run and the damaged row is in quarantine.
WAIT_SECONDS = 150.0
#: Each part that is loaded after the page has arrived.
LOADED = """
    const arrived = path => performance.getEntriesByName(location.origin + path)
        .some(entry => entry.responseEnd > 0);
    const parts = [...document.querySelectorAll("[data-fragment]")].map(e => e.dataset.fragment);
    const counts = [...document.querySelectorAll("[data-counts]")].map(e => e.dataset.counts);
    return document.querySelector(".db-skeleton") === null && [...parts, ...counts].every(arrived);
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page in a window of this size."""

    name: str
    path: str
    height: int = 900
    width: int = WIDTH
    scheme: str = "light"
    #: The height of a picture that begins at the heading of the page. None: the whole window.
    cropped_height: int | None = None


PICTURES = [
    Picture("flower-schedules", "schedules"),
    Picture("flower-schedules-cropped", "schedules", cropped_height=652),
    Picture("flower-schedule", "schedule?owner=user:4&name=digest&zone=owner", height=1290),
    Picture("flower-timeline", "timeline?window=15m", height=1070, scheme="dark"),
    Picture("flower-runs", "runs?status=failed&status=lost&since=24h"),
    Picture("flower-calendar", "calendar?name=public-holidays", height=760),
    Picture("flower-beats", "nodes", height=1300),
]


def main() -> None:
    """Start the demo, and write each picture."""
    parser = argparse.ArgumentParser(description="take the pictures of docs/images again")
    parser.add_argument("--wait", type=float, default=WAIT_SECONDS, help="seconds of the demo")
    wait = parser.parse_args().wait
    with tempfile.TemporaryDirectory() as name, demo() as url, chromium(Path(name)) as browser:
        browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ZONE})
        # The first page sets the cookie with the zone of the browser.
        browser.open(f"{url}/schedules")
        time.sleep(wait)
        for picture in PICTURES:
            file = take(picture, browser, url)
            print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes", flush=True)


@contextmanager
def demo() -> Iterator[str]:
    """Yield the address of the pages while the demo runs."""
    command = [sys.executable, str(DEMO)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            addresses = (re.search(r"http://\S+/dynbeat", line) for line in process.stdout)
            yield next(found[0] for found in addresses if found)
        finally:
            process.terminate()


def take(picture: Picture, browser: Browser, url: str) -> Path:
    """Write a picture, and return its file."""
    browser.prefer(picture.scheme)
    resize(browser, picture)
    browser.open(f"{url}/{picture.path}")
    browser.wait(lambda _: browser.driver.execute_script(LOADED), "the page is loaded")
    browser.driver.execute_async_script(SETTLE)
    clip = {"x": 0, "y": 0, "width": picture.width, "height": picture.height, "scale": 1}
    if picture.cropped_height:
        heading = browser.driver.execute_script(HEADING)
        clip |= {"y": heading - MARGIN, "height": picture.cropped_height}
    options = {"format": "png", "clip": clip}
    answer = browser.driver.execute_cdp_cmd("Page.captureScreenshot", options)
    file = IMAGES / f"{picture.name}.png"
    file.write_bytes(base64.b64decode(answer["data"]))
    pngquant = find_program("pngquant", package="pngquant")
    subprocess.run([pngquant, "--force", "--ext=.png", "--strip", file], check=True)
    return file


def resize(browser: Browser, picture: Picture) -> None:
    """Set the size of the page."""
    size = {"width": picture.width, "height": picture.height}
    size |= {"deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


if __name__ == "__main__":
    main()
