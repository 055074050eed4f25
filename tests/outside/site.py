"""Look at a built site in a browser: python tests/outside/site.py build/docs

Each page is laid out 400, 800 and 1,400 pixels wide, light and dark. Said, and the exit status 1: a page that
is wider than its window, a picture that is not there or wider than what it stands in, and text cut off at the
side. Needs a headless chromium. Without one it says so, and fails where CI is set, as hosts of a CI do.
"""

import functools
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
WIDTHS = (400, 800, 1400)
LIMIT_S = 600  # for all pages
LOOK = """<!doctype html><body><iframe style="border: 0; height: 3000px"></iframe><script>
const frame = document.querySelector("iframe"), found = [];
const style = element => frame.contentWindow.getComputedStyle(element);
const room_of = picture => {
  let box = picture.parentElement;
  while (style(box).display === "inline") box = box.parentElement;
  const {paddingLeft, paddingRight} = style(box);
  return Math.ceil(box.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
};
const load = page => new Promise(done => { frame.onload = done; frame.src = page; });
(async () => {
  for (const page of PAGES) {
    await load(page);
    const inside = frame.contentDocument, root = inside.documentElement;
    for (const picture of inside.images) {
      picture.loading = "eager";
      await picture.decode().catch(() => found.push(`${page}: no picture ${picture.src}`));
    }
    for (const theme of ["light", "dark"]) {
      inside.body.dataset.theme = theme;
      for (const width of WIDTHS) {
        frame.style.width = `${width}px`;
        const at = `${page}, ${width}, ${theme}`;
        const say = (what, is, room) => found.push(`${at}: ${what}, ${is} wide of ${room}`);
        if (root.scrollWidth > width) say("the page", root.scrollWidth, width);
        for (const picture of inside.images) {
          const is = Math.floor(picture.getBoundingClientRect().width), room = room_of(picture);
          if (is > room) say(`picture ${picture.src}`, is, room);
        }
        for (const each of inside.querySelectorAll("*")) {
          const is = each.scrollWidth, room = each.clientWidth;
          const seen = room > 1;  // or it is for those who hear the page
          if (seen && is > room && /hidden|clip/.test(style(each).overflowX))
            say(`cut off: ${each.textContent.trim().slice(0, 40)}`, is, room);
        }
      }
    }
  }
  await fetch("/", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


class Server(http.server.ThreadingHTTPServer):
    """Of the pages. found: what the browser tells at the end."""

    def __init__(self, site: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=site))
        self.found: queue.Queue[list[str]] = queue.Queue()


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Say nothing of requests."""


def look(site: Path) -> list[str]:
    """What is wrong with the pages below site."""
    pages = sorted(f"/{page.relative_to(site)}" for page in site.rglob("*.html"))
    harness = site / "_look.html"
    server = Server(site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        harness.write_text(LOOK.replace("PAGES", json.dumps(pages)).replace("WIDTHS", str([*WIDTHS])))
        command = [str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1500,3000"]
        command += [f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}/{harness.name}"]
        nothing = subprocess.DEVNULL
        browser = subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True)
        try:
            found = server.found.get(timeout=LIMIT_S)
        finally:
            os.killpg(browser.pid, signal.SIGKILL)  # it has many children
            browser.wait()
            harness.unlink()
            server.shutdown()
    print(f"{len(pages)} pages, {', '.join(map(str, WIDTHS))} pixels wide, light and dark")
    return found


def main() -> None:
    if BROWSER is None:
        print("no headless chromium: the pages were not looked at")
        sys.exit(bool(os.environ.get("CI")))
    wrong = look(Path(sys.argv[1]).resolve())
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
