"""Audits of updates from elsewhere: a gradient in a notebook, the captures of another Flower app.

``fedsim`` offers the names of the Python interface, such as ``fedsim.attack``.

Ring 2. May import: experiments.report and below, attacks, clients, server, fedsim.
"""

MANIFEST = "updates.toml"
"""Of a folder of state dicts, see ``experiments.captures.pairs``."""
