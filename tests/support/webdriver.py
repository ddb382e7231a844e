"""A browser for tests: headless Chromium, spoken to by WebDriver over plain
HTTP, with nothing but Python's standard library."""
import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


def missing():
    """Returns what is not installed, or None."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return program
    return None


class Browser:
    def __init__(self, width=1200, height=900):
        self.log = tempfile.TemporaryFile("w+")
        self.folder = tempfile.mkdtemp()
        self.driver = subprocess.Popen(["chromedriver", "--port=0"],
                                       stdout=self.log, stderr=self.log)
        self.base = "http://127.0.0.1:%d" % self._port()
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": [
                "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--hide-scrollbars",
                "--user-data-dir=" + self.folder,
                "--window-size=%d,%d" % (width, height)]}}}}, 60)
        self.session = "/session/" + answer["sessionId"]

    def _port(self):
        until = time.time() + 30
        while time.time() < until:
            self.log.seek(0)
            found = re.search(r"successfully on port (\d+)", self.log.read())
            if found:
                return int(found.group(1))
            time.sleep(0.05)
        raise RuntimeError("chromedriver does not start")

    def _call(self, method, path, body=None, timeout=30):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data=data, method=method,
            headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as e:
            raise RuntimeError(e.read().decode()[:500]) from None

    def open(self, url):
        self._call("POST", self.session + "/url", {"url": url}, 60)

    def run(self, script, *args):
        """Runs a function body in the page and returns what it returns."""
        return self._call("POST", self.session + "/execute/sync",
                          {"script": script, "args": list(args)})

    def text(self, selector):
        """Returns the text of the first element, or None."""
        return self.run("const e = document.querySelector(arguments[0]);"
                        "return e && e.textContent", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])]"
                        ".map(e => e.textContent)", selector)

    def until(self, script, seconds=20):
        """Waits until the script returns something true, and returns that."""
        end = time.time() + seconds
        while time.time() < end:
            got = self.run(script)
            if got:
                return got
            time.sleep(0.05)
        return None

    def screenshot(self, path):
        data = self._call("GET", self.session + "/screenshot")
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))

    def close(self):
        try:
            self._call("DELETE", self.session)
        except (OSError, RuntimeError):
            pass
        self.driver.terminate()
        self.driver.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
