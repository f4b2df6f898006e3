"""Common settings of all tables of an experiment file."""

from pydantic import ConfigDict

from fedsim.store.files import Record


class ConfigSection(Record):
    """A table of an experiment file: values are not coerced, and every number is finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
