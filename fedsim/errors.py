"""The errors a user may see. Each message reads ``<where>: <what is wrong>. <what to do>.``."""


class FedsimError(Exception):
    """Base of all errors that the command line prints as one line, without a traceback."""


class ConfigError(FedsimError):
    """The experiment, an option or an argument is wrong."""


class StoreError(FedsimError):
    """A file of a run folder is missing, cut or altered."""


class CannotAttack(FedsimError):
    """The attack needs something that this observation or threat model does not give."""


class SimulationError(FedsimError):
    """A client or the server failed during the federated training."""
