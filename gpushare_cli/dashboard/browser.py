"""Opens the page in a browser. The only importer of webbrowser."""

import contextlib
import html
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def showing(address: str) -> Iterator[bool]:
    """Open an address, and whether there is a browser.

    A browser's arguments are there for all users of the machine to read (`ps`), so it gets a file that leads to the
    address and that only its own user may read. A browser for terminals runs until its user leaves it.
    """
    with tempfile.TemporaryDirectory(prefix="gpushare-dashboard-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "open.html"
        target = html.escape(address)
        file.write_text(
            f'<!doctype html><title>gpushare</title><meta http-equiv="refresh" content="0; url={target}">'
            f'<a href="{target}">gpushare dashboard</a>\n',
            encoding="utf-8",
        )
        yield _opened(file.as_uri())


def _opened(uri: str) -> bool:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    threading.Thread(target=browser.open, args=(uri,), name="browser", daemon=True).start()
    return True
