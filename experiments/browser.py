"""The browser of this machine, where it has a screen."""

import os
import sys
import webbrowser


def show_page(address: str) -> None:
    """Open an address in a browser where there is a screen."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform != "linux" or any(os.environ.get(name) for name in screens):
        webbrowser.open(address)
