"""A real headless Chromium, and what a test asks of a page in it."""

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.accessibility import grave_violations
from tests.support.servers.machine import find_program

T = TypeVar("T")

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
SHOWN_WITHIN = 10.0
LOADED_WITHIN = 30.0
#: Widths of a desktop window and of a telephone, in CSS pixels.
WIDE, NARROW = 1280, 375
HEIGHT = 900
POLL_SECONDS = 0.05
# A change of the colour scheme takes effect at the next frame, and then fades in.
SETTLE = """
    const done = arguments[arguments.length - 1];
    const finish = animation => { try { animation.finish() } catch { /* it never ends */ } };
    requestAnimationFrame(() => requestAnimationFrame(() => {
        document.getAnimations().forEach(finish);
        requestAnimationFrame(() => done());
    }));
"""


class Browser:
    """One window of a browser with an empty profile; ``driver`` is Selenium's.

    Pages must not log errors: ``console_errors`` returns the unexpected ones.
    """

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self._expected: list[str] = []
        driver.set_page_load_timeout(LOADED_WITHIN)
        driver.set_script_timeout(LOADED_WITHIN)
        self.resize(WIDE)
        self.prefer("light")

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self.driver.get(url)

    def log_in(self, url: str, credentials: str) -> None:
        """Open ``url`` with ``user:password``, as if entered in the dialog of basic authentication.

        The browser sends them to this server from then on. The page's address does not have them.
        """
        scheme, _, rest = url.partition("://")
        self.open(f"{scheme}://{credentials}@{rest}")
        self.open(url)

    def resize(self, width: int) -> None:
        """Set the width of the page. A real window cannot be as narrow as a telephone."""
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Set the colour scheme of the system: ``light`` or ``dark``. Nothing is animated."""
        media = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str, text: str = "") -> WebElement:
        """Return the first visible element of a CSS selector with ``text``, when there is one."""

        def shown(_: object) -> WebElement | None:
            elements = (one for one in self.find_all(selector) if one.is_displayed())
            return next((one for one in elements if text in one.text), None)

        return self.wait(shown, f"no visible element {selector} with {text!r}")

    def find_all(self, selector: str) -> Sequence[WebElement]:
        """Return the elements of a CSS selector that the page has now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the visible texts of the elements of a CSS selector."""
        return [element.text for element in self.find_all(selector)]

    def wait(self, condition: Callable[[object], T | None], message: str) -> T:
        """Return the first true result of ``condition``; its error names the page.

        The condition is called again after an element was replaced during the call.
        """
        waiting = WebDriverWait(
            self.driver,
            SHOWN_WITHIN,
            poll_frequency=POLL_SECONDS,
            ignored_exceptions=[StaleElementReferenceException],
        )
        return waiting.until(condition, f"{message} on {self.driver.current_url}")  # type: ignore[return-value] # until() excludes None only in its docs

    def expect_error(self, text: str) -> None:
        """Accept errors of the console that contain ``text``, such as a refused request."""
        self._expected.append(text)

    def console_errors(self) -> list[str]:
        """Return the errors that pages logged since the last call.

        Uncaught exceptions, failed requests and violations of a Content-Security-Policy are errors.
        """
        entries = self.driver.get_log("browser")
        errors = [str(entry["message"]) for entry in entries if entry["level"] == "SEVERE"]
        return [one for one in errors if not any(text in one for text in self._expected)]

    def accessibility_errors(self, *, within: str = ":root") -> Sequence[str]:
        """Return the serious and critical findings of axe-core in a part of the page."""
        self.driver.execute_async_script(SETTLE)
        return grave_violations(self.driver, within=within)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        script = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
        return int(self.driver.execute_script(script))

    def screenshot(self, name: str) -> Path:
        """Write the whole page to ``build/screenshots/<name>.png`` and return the path."""
        self.driver.execute_async_script(SETTLE)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        options = {"format": "png", "captureBeyondViewport": True}
        answer = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        path = SCREENSHOTS / f"{name}.png"
        path.write_bytes(base64.b64decode(answer["data"]))
        return path


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Yield a new Chromium that ends with the block. Its log is in ``folder``.

    A start takes 0.7 s. A new profile in a running browser takes 0.5 s, and tests would share the
    remembered logins of basic authentication without one. Raises ServerMissingError.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = str(find_program("chromium", package="chromium"))
    driver_path = find_program("chromedriver", package="chromium-driver")
    for argument in _arguments():
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(str(driver_path), log_output=str(folder / "chromedriver.log"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _arguments() -> list[str]:
    # Requests of the browser itself would leave the machine.
    arguments = ["--headless=new", "--disable-background-networking", "--disable-component-update"]
    # A container has a /dev/shm of 64 MB.
    arguments += ["--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"]
    # The sandbox refuses to start as root.
    return [*arguments, "--no-sandbox"] if os.geteuid() == 0 else arguments
