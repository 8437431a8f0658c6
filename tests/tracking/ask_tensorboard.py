#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts TensorBoard's server on a folder, and prints what its HTTP interface says of the run "run", as JSON.

    ask_tensorboard.py DIR

Exit code 3: this Python has no tensorboard.
"""
import io
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

try:
    import numpy
    import tensorboard  # noqa: F401
    from PIL import Image
except ImportError as error:
    print(f"{sys.executable} has no tensorboard: {error}", file=sys.stderr)
    sys.exit(3)

LIMIT_S = 90


class Server:
    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", "0", "--host", "127.0.0.1",
             "--load_fast", "false"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            if found:
                self.url = found.group(0) + "data/"
                return
        raise SystemExit("tensorboard ended without an address")

    def get(self, path, data=None, **parameters):
        query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            self.url + path + query, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.read()

    def ask(self, path, data=None, **parameters):
        return json.loads(self.get(path, data, **parameters))

    def wait_for_run(self):
        end = time.monotonic() + LIMIT_S
        while "run" not in self.ask("plugin/scalars/tags"):
            if time.monotonic() > end:
                raise SystemExit("tensorboard shows no run")
            time.sleep(0.2)


def pixels(png):
    array = numpy.asarray(Image.open(io.BytesIO(png)))
    return (array if array.ndim == 3 else array[:, :, None]).tolist()


def main():
    server = Server(sys.argv[1])
    try:
        server.wait_for_run()
        images = [server.ask("plugin/images/images", run="run", tag="samples", sample=sample) for sample in (0, 1)]
        text = server.ask("plugin/text/text", run="run", tag="note/text_summary")
        sessions = server.ask("plugin/hparams/session_groups", data={
            "experimentName": "", "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE",
                                                      "STATUS_RUNNING"], "sliceSize": 10})
        print(json.dumps({
            "scalar": server.ask("plugin/scalars/scalars", run="run", tag="loss")[0][2],
            "images": len(images),
            "second_image": pixels(server.get("plugin/images/individualImage?" + images[1][0]["query"])),
            "buckets": server.ask("plugin/histograms/histograms", run="run", tag="w")[0][2],
            "text": text[0]["text"],
            "hparams": sessions["sessionGroups"][0]["hparams"],
        }))
    finally:
        server.process.terminate()
        server.process.wait()


if __name__ == "__main__":
    main()
