"""A headless Chromium, driven over its debugging pipe: no port, no WebSocket, nothing but Python's own modules.

The pipe is file descriptors 3 and 4 of the browser; messages are JSON, each ended by a zero byte. Problems of a page (messages of its
console, exceptions, violations of its content security policy, requests) are collected as they are reported.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]


def find():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self, folder):
        to_read, self.writes = os.pipe()
        self.reads, to_write = os.pipe()

        def pipes():
            # Neither may be the other's number while they are moved.
            ours, theirs = os.dup(to_read), os.dup(to_write)
            os.dup2(ours, 3)
            os.dup2(theirs, 4)

        # As root there is no sandbox; the only pages are those of the test.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio",
                   # Nothing but this machine is reached, whatever a page or the browser itself asks for.
                   "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        self.log = open(f"{folder}/browser.log", "wb")
        self.process = subprocess.Popen(
            [find(), *options, "--remote-debugging-pipe", f"--user-data-dir={folder}/profile", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.last, self.answers = b"", 0, {}
        self.problems, self.urls = [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network", "Audits"]:
            self.send(f"{domain}.enable")

    session = None

    def send(self, method, patience=30, **params):
        self.last += 1
        number, message = self.last, {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + patience
        while number not in self.answers:
            assert time.monotonic() < end, f"the browser does not answer {method}"
            self.receive(0.2)
        answer = self.answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def receive(self, seconds):
        """Handles what the browser reports within this time."""
        if not select.select([self.reads], [], [], seconds)[0]:
            return
        more = os.read(self.reads, 1 << 20)
        assert more, "the browser has ended"
        *messages, self.buffer = (self.buffer + more).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            else:
                self.on_event(message["method"], message["params"])

    def on_event(self, method, params):
        if method == "Runtime.consoleAPICalled":
            self.problems.append(("console", params["type"], [one.get("value") for one in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.problems.append(("exception", params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
            self.problems.append(("log", params["entry"]["text"], params["entry"].get("url")))
        elif method == "Audits.issueAdded":
            self.problems.append(("issue", params["issue"]))
        elif method == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])

    def open(self, url):
        self.send("Page.navigate", url=url)

    def run(self, script):
        """The value of an expression in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script, seconds=20):
        """Waits until an expression is true in the page; its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.run(script)
            if value or time.monotonic() > end:
                return value
            self.receive(0.05)

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def press(self, key, code=None, number=0, text=""):
        common = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, path):
        """The whole page as a PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.reads)
        os.close(self.writes)
        self.log.close()


if __name__ == "__main__":
    # Whether there is one.
    raise SystemExit(0 if find() else 1)
