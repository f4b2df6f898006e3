"""What every table of an experiment file is."""

from __future__ import annotations

from pydantic import ConfigDict

from fedsim.files import Record


class ConfigSection(Record):
    """A table of an experiment file: typed strictly, and every number finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
