"""Withholding: some tensors of the update never reach the server."""

from fnmatch import fnmatchcase
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedsim.defenses.base import DefenseFamily, Repeatable
from fedsim.errors import ConfigError
from fedsim.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Withhold(Repeatable):
    """Sends no tensor whose name fits a pattern (partial sharing; FedPer, Arivazhagan et al. 2019).

    Local steps train all parameters, and what is withheld is dropped at the end: the server keeps
    its values of them. To a server that is what encrypting them looks like, but for the training:
    encrypted tensors would be averaged, which ``capture.tensors`` shows.

    With every layer but the last withheld, the gradient of the last layer of one example is the
    outer product of its output's error and its features, so that both are read off exactly; only
    the way from the features back to the example is left. An adaptive attacker has nothing to allow
    for: what is there is not changed.

    Attributes:
        tensors: patterns of parameter names, such as ``["body.*"]``; ``*`` stands for anything.
        others: withhold the tensors that fit none of the patterns instead.
    """

    family: ClassVar[DefenseFamily] = "deployed"
    run_by: ClassVar[str] = "the client; filters of NVFlare, personal layers of FedPer"
    known: ClassVar[str] = "Which tensors are missing; the others are as they were."

    tensors: Annotated[tuple[str, ...], Field(min_length=1)]
    others: bool = False

    def on_model(self, model: nn.Module) -> None:
        """Check the patterns; all parameters are trained.

        Raises:
            ConfigError: a pattern fits no parameter, or nothing would be sent.
        """
        names = [name for name, value in model.named_parameters() if value.requires_grad]
        for pattern in self.tensors:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"withhold.tensors: {pattern!r} fits no parameter of {type(model).__name__}. "
                    f"Its parameters are {', '.join(names[:8])}{', ...' if names[8:] else ''}."
                )
        if all(map(self._withheld, names)):
            raise ConfigError("withhold.tensors: nothing would be sent. Leave a tensor out.")

    def surrogate(self, update: Tensors) -> Tensors:
        """The same."""
        return {name: value for name, value in update.items() if not self._withheld(name)}

    def _withheld(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.tensors) != self.others
