"""A headless Chromium, if there is one. Debian has it: apt-get install chromium chromium-driver."""

import shutil
from contextlib import contextmanager

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


@contextmanager
def opened_browser():
    """Skips the test where the package selenium, a Chromium or its driver is missing, with the reason."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver on this machine: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(browser)
    finally:
        browser.quit()


class Browser:
    """What a reader of a page does, and what the page shows then."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, page, width=1280, height=900, dark=False):
        """A file or an address, in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(page if isinstance(page, str) else page.resolve().as_uri())

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector)

    def click(self, selector):
        self.run("document.querySelector(arguments[0]).click()", selector)

    def choose(self, selector, value):
        script = "const node = document.querySelector(arguments[0]); node.value = arguments[1];"
        self.run(script + "node.dispatchEvent(new Event('change', { bubbles: true }))", selector, value)

    def press(self, key, selector="body"):
        script = "document.querySelector(arguments[0]).dispatchEvent(new KeyboardEvent('keydown', "
        self.run(script + "{ key: arguments[1], bubbles: true, cancelable: true }))", selector, key)

    def point(self, selector, share=0.5):
        """The pointer moves to a place inside an element; its vertical place is the middle."""
        self.run(
            "const node = document.querySelector(arguments[0]); const box = node.getBoundingClientRect();"
            "const place = { clientX: box.left + arguments[1] * box.width, clientY: box.top + box.height / 2 };"
            "for (const kind of ['pointerover', 'pointermove'])"
            "  node.dispatchEvent(new PointerEvent(kind, { bubbles: true, ...place }))",
            selector,
            share,
        )

    def complaints(self):
        """Errors and warnings of the console, those of the policy included."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def overflow(self):
        """How many pixels the page is wider than its window."""
        return self.run("return document.documentElement.scrollWidth - window.innerWidth")

    def screenshot(self, file):
        self.driver.save_screenshot(str(file))
