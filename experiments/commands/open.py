"""``fedsim open``: the report of a run in a browser."""

from experiments.browser import show_page
from experiments.commands.parameters import RunFolder
from fedsim.api.run import check_version, to_report
from fedsim.errors import StoreError
from fedsim.visible import say


def open_(run: RunFolder) -> None:
    """Open the report in a browser, and print its path."""
    check_version(run)
    page = run / "report" / "index.html"
    if not page.exists():
        raise StoreError(f"{run}: has no report. {to_report(run)}")
    say(page)
    show_page(page.resolve().as_uri())
