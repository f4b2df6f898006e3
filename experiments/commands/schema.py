"""``fedsim schema``: the JSON Schema of an experiment file."""

import json

from fedsim.visible import say


def schema() -> None:
    """Print the JSON Schema of an experiment file, with which editors complete and check it."""
    from experiments.preview.manuals import schema as of_experiments

    say(json.dumps(of_experiments(), indent=1))
